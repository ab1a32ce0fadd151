"""The command line: ``python -m xuance_envs COMMAND``, each with a ``--help`` of its own."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.measure import StepLoop, Throughput, measure, progress_ticks, sample_actions
from xuance_envs.report import markdown_table, plot_throughput

if TYPE_CHECKING:
    from tqdm import tqdm

    from xuance_envs.vector_envs.vector_env import VecEnv

SERIAL = "DummyVecEnv_Gym"
DEMO_BACKENDS: dict[str, Callable[[list[Callable[[], Any]]], VecEnv]] = {
    SERIAL: DummyVecEnv_Gym,
    "SubprocVecEnv_Gym": SubprocVecEnv_Gym,
    "SubprocVecEnv_Gym, caller_steps": partial(SubprocVecEnv_Gym, caller_steps=True),
}
DEMO_ROUNDS = 5
DEMO_PHASES = 1 + progress_ticks(1, DEMO_ROUNDS)
"""Watched once, then measured: what the progress bar counts for each backend."""


class CommandError(Exception):
    """Something the user can mend; shown without a traceback."""


@dataclass(frozen=True)
class Command:
    """One word after ``python -m xuance_envs``."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


@dataclass
class Episodes:
    """The episodes that ended while the environments of one backend were watched."""

    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def cells(self) -> list[str]:
        """How many there were, their mean score and their mean length, for the table."""
        if not self.scores:
            return ["0", "-", "-"]
        return [
            f"{len(self.scores):,}",
            f"{np.mean(self.scores):.1f}",
            f"{np.mean(self.lengths):.1f}",
        ]


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``demo`` takes."""
    parser.add_argument(
        "--env", default="CartPole-v1", metavar="ID", help="any Gymnasium id (default: %(default)s)"
    )
    parser.add_argument(
        "--num-envs",
        type=_positive(int),
        nargs="+",
        default=[8, 64],
        metavar="N",
        help="numbers of environments to try, one after another (default: 8 64)",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        default=4.0,
        metavar="S",
        help="for how long each backend steps each number of environments (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="where the plot is saved (default: %(default)s)",
    )


def run_demo(args: argparse.Namespace) -> None:
    """Watch real environments being stepped by every local backend, then time them."""
    _require("demo", "tqdm", "matplotlib")
    from tqdm import tqdm

    try:
        probe = Gym_Env(args.env)
    except (gymnasium.error.Error, ImportError) as error:
        raise CommandError(f"cannot make {args.env!r}: {error}") from error
    probe.close()
    print(f"{args.env}: observations {probe.observation_space}, actions {probe.action_space}")
    print("Random actions; an environment starts again as soon as its episode ends.", flush=True)

    sizes = list(dict.fromkeys(args.num_envs))
    panels: dict[int, list[Throughput]] = {}
    rows: list[list[str]] = []
    with tqdm(total=len(sizes) * len(DEMO_BACKENDS) * DEMO_PHASES, unit="run") as bar:
        for num_envs in sizes:
            actions = sample_actions(probe.action_space, num_envs)
            panels[num_envs], episodes = _demo_size(args.env, actions, num_envs, args.seconds, bar)
            rows += [
                _demo_row(result, panels[num_envs][0], episodes[result.name])
                for result in panels[num_envs]
            ]

    header = ("backend", "envs", "steps/s", "spread", "× Dummy", "episodes", "score", "length")
    print(f"\n{markdown_table(header, rows)}\n")
    print("steps/s: environment steps per second, the median of", DEMO_ROUNDS, "interleaved rounds")
    print("episodes, score, length: finished while watched, before the timing, and their means\n")
    picture = args.out / f"{args.env.replace('/', '-')}.png"
    plot_throughput(panels, picture, title=f"{args.env}, random actions")
    print("The plot is in")
    print(picture)


def _demo_size(
    env_id: str, actions: Sequence[Any], num_envs: int, seconds: float, bar: tqdm[Any]
) -> tuple[list[Throughput], dict[str, Episodes]]:
    """Watch, then time, every backend over so many environments."""

    def show(name: str, rate: float) -> None:
        bar.set_description(f"{num_envs} × {name}", refresh=False)
        bar.set_postfix_str(f"{rate:,.0f} steps/s", refresh=False)
        bar.update()

    with ExitStack() as stack:
        runners: dict[str, StepLoop] = {}
        episodes: dict[str, Episodes] = {}
        for name, backend in DEMO_BACKENDS.items():
            bar.set_description(f"{num_envs} × {name}: starting")
            vec_env = stack.enter_context(backend([partial(Gym_Env, env_id)] * num_envs))
            vec_env.reset(seed=0)
            bar.set_description(f"{num_envs} × {name}: watching")
            episodes[name], rate = _watch(vec_env, actions, seconds / DEMO_PHASES)
            show(name, rate)
            runners[name] = StepLoop(vec_env, num_envs, actions)
        throughput = measure(
            runners, rounds=DEMO_ROUNDS, seconds=seconds / DEMO_PHASES, progress=show
        )
    return list(throughput.values()), episodes


def _watch(vec_env: VecEnv, actions: Sequence[Any], seconds: float) -> tuple[Episodes, float]:
    """Step for so many seconds, reading how every episode ended; also the steps per second."""
    episodes = Episodes()
    start = time.perf_counter()
    steps = 0
    while (elapsed := time.perf_counter() - start) < seconds or steps == 0:
        _, _, terminated, truncated, infos = vec_env.step(actions[steps % len(actions)])
        steps += 1
        for index in np.flatnonzero(terminated | truncated).tolist():
            episodes.scores.append(float(infos[index]["episode_score"]))
            episodes.lengths.append(int(infos[index]["episode_step"]))
    return episodes, steps * vec_env.num_envs / elapsed


def _demo_row(result: Throughput, serial: Throughput, episodes: Episodes) -> list[str]:
    return [
        result.name,
        str(result.num_envs),
        f"{result.median:,.0f}",
        f"{result.spread:.0%}",
        f"{result.relative_to(serial):.2f}",
        *episodes.cells(),
    ]


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """An argparse type: a number of this kind above zero."""

    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


def _require(command: str, *modules: str) -> None:
    """Say what to install when an optional package that ``command`` needs is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"{command} needs {' and '.join(missing)}, not installed here: "
            'pip install "xuance_envs[plot]"'
        )


COMMANDS = {
    "demo": Command(
        "watch real environments being stepped, and see how fast each backend is",
        add_demo_arguments,
        run_demo,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m xuance_envs", description="Vectorized reinforcement-learning environments."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=command.summary, description=f"{name}: {command.summary}."
        )
        command.add_arguments(subparser)
    args = parser.parse_args(argv)
    try:
        COMMANDS[args.command].run(args)
    except CommandError as error:
        print(f"{parser.prog} {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
