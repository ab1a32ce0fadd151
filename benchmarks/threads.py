"""Compare threads with worker processes.

The script has two parts, each with a table:

- ``waiting``: environments that sleep in each step, with one thread or one process for each: the
  time to the first observations, the memory, and the environment steps per second relative to the
  ideal, in which all environments sleep at the same time.
- ``computing``: CartPole, whose steps hold the global interpreter lock (GIL). Run this part in a
  free-threaded Python, too.

Each implementation runs in a fresh process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from benchmarks.footprint import family_mib
from benchmarks.shared.envs import SleepingEnv
from benchmarks.shared.fresh import call_fresh
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs.engine.system.gil import gil_is_enabled
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

WAITING: dict[str, Callable[..., VecEnv]] = {
    "threads": partial(ThreadVecEnv, in_series=1),
    "processes": partial(SubprocVecEnv, in_series=1, start_timeout=600),
}
COMPUTING: dict[str, Callable[..., VecEnv]] = {
    "threads": partial(ThreadVecEnv, num_workers=2),
    "threads, caller_steps": partial(ThreadVecEnv, num_workers=1, caller_steps=True),
    "processes": partial(SubprocVecEnv, num_workers=2),
    "processes, caller_steps": partial(SubprocVecEnv, num_workers=1, caller_steps=True),
}


def waiting(kind: str, num_envs: int, milliseconds: float, steps: int) -> list[float]:
    """Return the seconds to the first observations, the additional MiB and the steps/s."""
    before, began = family_mib(), time.perf_counter()
    with WAITING[kind]([partial(SleepingEnv, milliseconds / 1e3)] * num_envs) as envs:
        envs.reset()
        seconds = time.perf_counter() - began
        return [seconds, family_mib() - before, rate(envs, steps)]


def computing(kind: str, num_envs: int, steps: int) -> list[float]:
    """Return the environment steps per second with CartPole."""
    with COMPUTING[kind]([partial(gymnasium.make, "CartPole-v1")] * num_envs) as envs:
        envs.reset(seed=0)
        return [rate(envs, steps)]


def rate(envs: VecEnv, steps: int) -> float:
    actions = [0] * envs.num_envs
    for _ in range(3):
        envs.step(actions)
    start = time.perf_counter()
    for _ in range(steps):
        envs.step(actions)
    return envs.num_envs * steps / (time.perf_counter() - start)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("threads", __doc__)
    add = parser.add_argument
    add("--waiting-envs", type=int, nargs="+", default=[64], metavar="N")
    add("--milliseconds", type=float, default=5.0, help="sleep per step (default: %(default)s)")
    add("--computing-envs", type=int, nargs="+", default=[8, 64], metavar="N")
    add("--steps", type=int, default=200, help="vector steps of each run (default: %(default)s)")
    add("--rounds", type=int, default=3, help="interleaved runs of each implementation")
    add_outputs(parser, "threads tables")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    cases = [("waiting", WAITING, n, (args.milliseconds,)) for n in args.waiting_envs]
    cases += [("computing", COMPUTING, n, ()) for n in args.computing_envs]
    results, rows = [], []
    for part, kinds, num_envs, more in tqdm(cases, unit="case", dynamic_ncols=True, disable=None):
        found: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind in kinds:
                found[kind].append(call_fresh("threads", part, kind, num_envs, *more, args.steps))
        for kind, rounds in found.items():
            ratio = float(
                np.median([a[-1] / b[-1] for a, b in zip(rounds, found["processes"], strict=True)])
            )
            *start, speed = np.median(rounds, axis=0).tolist()
            results.append(
                {
                    "part": part,
                    "environments": num_envs,
                    "contender": kind,
                    "rounds": rounds,
                    "ratio": ratio,
                }
            )
            ideal = num_envs / args.milliseconds * 1e3 if part == "waiting" else 0.0
            rows.append(
                [
                    part,
                    str(num_envs),
                    kind,
                    f"{start[0]:.2f}" if start else "-",
                    f"{start[1]:,.0f}" if start else "-",
                    f"{speed:,.0f}",
                    f"{ratio:.2f}",
                    f"{speed / ideal:.2f}" if ideal else "-",
                ]
            )
    header = ("part", "environments", "implementation", "start, s", "MiB", "steps/s", "× processes")
    text = markdown_table((*header, "× ideal"), rows, words=3)
    gil = "on" if gil_is_enabled() else "off"
    print(f"\nGIL {gil}, sleeps of {args.milliseconds:g} ms, {args.rounds} rounds\n\n{text}")
    finish(args, __doc__, run, text, gil=gil, results=results)


if __name__ == "__main__":
    main()
