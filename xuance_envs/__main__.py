"""The command line: ``python -m xuance_envs COMMAND``; every command has a ``--help``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from xuance_envs.doctor import add_doctor_arguments
from xuance_envs.errors import StateError
from xuance_envs.file_commands import add_replay_arguments, add_state_arguments
from xuance_envs.measuring_commands import add_bench_arguments, add_demo_arguments
from xuance_envs.remote.cli import CommandError
from xuance_envs.remote.cli.administration import add_sessions_arguments, add_tokens_arguments
from xuance_envs.remote.cli.serve import add_serve_arguments

COMMANDS = {
    "demo": (
        "train an agent, and compare the throughput of DummyVecEnv and SubprocVecEnv",
        add_demo_arguments,
    ),
    "bench": ("measure which backend is fastest for an environment", add_bench_arguments),
    "doctor": ("report your setup and test the backends", add_doctor_arguments),
    "state": ("describe a state or failure file", add_state_arguments),
    "replay": ("reproduce a recorded failure", add_replay_arguments),
    "serve": ("serve environments over HTTP, for RemoteVecEnv and notebooks", add_serve_arguments),
    "tokens": ("create tokens for the users of a server", add_tokens_arguments),
    "sessions": ("list or end the sessions of a server", add_sessions_arguments),
}
"""Each command's summary, and the function that adds its arguments and sets ``run``."""


EXAMPLES = """\
examples:
  python -m xuance_envs demo                        train on CartPole, then measure throughput
  python -m xuance_envs demo Breakout               measure throughput on an Atari game
  python -m xuance_envs bench HalfCheetah-v5        find the fastest backend
  python -m xuance_envs serve --env CartPole-v1     serve environments over HTTP

in Python:
  from xuance_envs import make_vec
  envs = make_vec("CartPole-v1", 8)
  obs, infos = envs.reset(seed=0)
  obs, rewards, terminated, truncated, infos = envs.step([0] * 8)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, or print the help; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m xuance_envs",
        description="Fast, fault-tolerant vectorized environments for reinforcement learning.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (summary, add_arguments) in COMMANDS.items():
        add_arguments(subparsers.add_parser(name, help=summary, description=f"{name}: {summary}."))
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # render without a display
        os.environ.setdefault(driver, "dummy")
    try:
        args.run(args)
    except (CommandError, StateError, OSError) as error:
        print(f"{parser.prog} {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
