"""The commands about files: what is in a file of states, and a failure once more."""

from __future__ import annotations

import argparse
import datetime
import pdb
from pathlib import Path
from typing import Any

import numpy as np

from xuance_envs.engine.failure_files import Failure
from xuance_envs.errors import EnvError
from xuance_envs.report import markdown_table
from xuance_envs.state.file_format import header_of
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

__all__ = ["add_replay_arguments", "add_state_arguments", "run_replay", "run_state"]


def add_state_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``state`` takes."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of states, .xenvs")


def run_state(args: argparse.Namespace) -> None:
    """Print what a file of states says of itself; nothing in it is executed."""
    data = args.file.read_bytes()
    header = header_of(data)
    when = datetime.datetime.fromtimestamp(args.file.stat().st_mtime).isoformat(" ", "seconds")
    print(
        f"{args.file}: {len(header['envs'])} environments, {len(data):,} bytes "
        f"({header['bytes']:,} in memory), written {when}"
    )
    print("saved with", ", ".join(f"{k} {v}" for k, v in header["versions"].items()))
    for digest, what in header["what"].items():
        print(f"\n{digest}:")
        for name, value in what["is"].items():
            shown = ", ".join(value) if isinstance(value, list) else value
            print(f"  {name}: {shown}")
        print("  of", ", ".join(f"{name} {version}" for name, version in what["versions"].items()))
    if "failure" in header:
        print(f"\nafter {header['failure']['steps']} steps: {header['failure']['what']}")
    print()
    rows = [_row(number, env) for number, env in enumerate(header["envs"])]
    print(markdown_table(["environment", "kind", "bytes", "what", "kept besides"], rows))
    if header["shared"]:
        print("for all together:", ", ".join(header["shared"]))


def _row(number: int, env: dict[str, Any]) -> list[str]:
    extras = ", ".join(f"{name} ({length:,} bytes)" for name, length in env["extras"].items())
    return [str(number), env["kind"], f"{env['bytes']:,}", env["what"][:8], extras]


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``replay`` takes."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a file that record_failures left; replaying it runs the code in it, so only those "
        "you trust",
    )
    parser.add_argument("--pdb", action="store_true", help="a debugger where it raises")
    parser.add_argument("--render", action="store_true", help="render each step")


def run_replay(args: argparse.Namespace) -> None:
    """Make a recorded failure happen again, in this process."""
    failure = Failure(args.file)
    print(f"what happened: {failure.what.splitlines()[0]}")
    print(
        f"{len(failure.actions)} steps of {len(failure.functions)} environments, the last one is it"
    )
    functions = [
        (lambda function=function, given=given: function(**given))
        for function, given in zip(failure.functions, failure.keywords, strict=True)
    ]
    envs = DummyVecEnv(functions)
    with envs:
        envs.reset()
        envs.load_state(failure.states)
        for number, leaves in enumerate(failure.actions, 1):
            try:
                obs, rewards, *_ = envs.step(envs.batch_of_actions(leaves))
            except EnvError as error:
                if args.pdb and error.__cause__ is not None:
                    pdb.post_mortem(error.__cause__.__traceback__)
                print(f"step {number} raised: {error}")
                return
            if args.render:
                envs.render()
            if np.isnan(rewards).any() or _has_nan(obs):
                print(f"step {number} gave a NaN: rewards {rewards}, observations {obs}")
                if args.pdb:
                    pdb.set_trace()
                return
    print("it did not happen again: what it depends on is not in the environments' states")


def _has_nan(obs: Any) -> bool:
    parts = obs.values() if isinstance(obs, dict) else obs if isinstance(obs, tuple) else [obs]
    arrays = [np.asarray(part) for part in parts]
    return any(bool(np.isnan(a).any()) for a in arrays if a.dtype.kind == "f")
