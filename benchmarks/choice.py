"""Compare the choices of backend="auto" with a fixed list of backends.

For each kind of environment, the script calls autotune several times. Then it measures the chosen
and the listed backends in the same rounds. make_vec(backend="auto") uses autotune's choice.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.shared.contest import race
from benchmarks.shared.envs import SleepingEnv
from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.making import env_maker
from xuance_envs.measure import Runner, StepLoop, Throughput, sample_actions
from xuance_envs.report import markdown_table
from xuance_envs.tuning import Autotuned, Candidate, autotune

SLEEP_SECONDS = 0.5e-3


COMMON = (
    Candidate("dummy"),
    Candidate("subproc"),
    Candidate("subproc", {"caller_steps": True}),
)
SHARED = tuple(Candidate("subproc", {"in_series": k}) for k in (1, 2, 4))


@dataclass(frozen=True)
class Case:
    """Environments to choose a backend for, and the fixed backends."""

    title: str
    env_fn: Callable[[], Any]
    num_envs: int
    fixed: tuple[Candidate, ...] = COMMON


CASES = {
    **{f"cartpole-{n}": Case("CartPole-v1", env_maker("CartPole-v1"), n) for n in (2, 64, 512)},
    "halfcheetah-16": Case("HalfCheetah-v5", env_maker("HalfCheetah-v5"), 16),
    "breakout-8": Case("ALE/Breakout-v5", env_maker("ALE/Breakout-v5", image_size=84), 8),
    "sleeping-16": Case(
        f"sleeping {SLEEP_SECONDS * 1e3:g} ms",
        partial(SleepingEnv, SLEEP_SECONDS),
        16,
        COMMON + SHARED,
    ),
}


@dataclass(frozen=True)
class Judged:
    """Choices of autotune, the seconds that each call took, and the throughput of all backends."""

    case: Case
    choices: tuple[Autotuned, ...]
    seconds: tuple[float, ...]
    measured: dict[str, Throughput]

    @property
    def best(self) -> Throughput:
        """The throughput of the best fixed backend."""
        return max(
            (self.measured[each.name] for each in self.case.fixed), key=lambda each: each.median
        )

    @property
    def ratios(self) -> list[float]:
        """The throughput of each choice relative to the best fixed backend."""
        return [self.measured[each.choice.name].relative_to(self.best) for each in self.choices]

    def row(self) -> list[str]:
        chosen = Counter(each.choice.name for each in self.choices)
        names = [f"{name} ({count}×)" for name, count in chosen.most_common()]
        return [
            f"{self.case.num_envs} × {self.case.title}",
            "; ".join(names),
            self.best.name,
            f"{self.best.median:,.0f}",
            f"{self.best.spread:.0%}",
            f"{np.median(self.ratios):.2f}",
            f"{min(self.ratios):.2f}",
            f"{np.median(self.seconds):.1f}",
        ]

    def record(self) -> dict[str, Any]:
        """Return all measurements for the JSON file."""
        return {
            "environments": self.case.num_envs,
            "what": self.case.title,
            "best": self.best.name,
            "choices": [
                {
                    "choice": each.choice.name,
                    "reason": each.reason,
                    "candidates": {other.name: other.steps_per_second for other in each.candidates},
                    "seconds": seconds,
                    "of_the_best": ratio,
                }
                for each, seconds, ratio in zip(
                    self.choices, self.seconds, self.ratios, strict=True
                )
            ],
            "measured": {name: result.rates for name, result in self.measured.items()},
        }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("choice", __doc__)
    add = parser.add_argument
    add(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        metavar="CASE",
        help=", ".join(CASES),
    )
    add("--times", type=int, default=5, help="calls of autotune (default: %(default)s)")
    add_rounds(parser)
    add_outputs(parser, "choice table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    judged, notes = [], []
    for name in dict.fromkeys(args.cases):
        try:
            judged.append(judge(args, CASES[name], notes.append))
        except Exception as error:  # a missing extra must not end the run
            notes.append(f"{name}: left out, {error}".splitlines()[0])
    header = ("environments", "chosen", "best fixed choice", "steps/s", "spread")
    header += ("× best", "× best, minimum", "seconds of autotune")
    print(f"\n{args.rounds} rounds of {args.seconds:g} s\n")
    text = with_notes(markdown_table(header, [each.row() for each in judged], words=3), notes)
    print(text)
    finish(args, __doc__, run, text, notes=notes, results=[each.record() for each in judged])


def judge(args: argparse.Namespace, case: Case, note: Callable[[str], None]) -> Judged:
    """Call autotune, and measure its choices and the fixed backends."""
    choices, seconds = [], []
    for _ in range(args.times):
        start = time.perf_counter()
        choices.append(autotune(case.env_fn, case.num_envs))
        seconds.append(time.perf_counter() - start)
    contenders = {each.name: each for each in case.fixed}
    contenders |= {each.choice.name: each.choice for each in choices}

    def make_runners(stack: ExitStack) -> dict[str, Runner]:
        return {name: make_runner(case, each, stack) for name, each in contenders.items()}

    measured = race(args, f"{case.num_envs} × {case.title}", make_runners, note)
    return Judged(case, tuple(choices), tuple(seconds), measured)


def make_runner(case: Case, candidate: Candidate, stack: ExitStack) -> Runner:
    """Make a backend's runner; the stack closes it."""
    backend = {"dummy": DummyVecEnv_Gym, "subproc": SubprocVecEnv_Gym}[candidate.backend]
    vec_env = backend([case.env_fn] * case.num_envs, **candidate.options)
    stack.enter_context(vec_env)
    vec_env.reset(seed=0)
    actions = sample_actions(vec_env.action_space, case.num_envs)
    return StepLoop(vec_env, case.num_envs, actions)


if __name__ == "__main__":
    main()
