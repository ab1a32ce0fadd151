"""Measure where the time of one vector step goes."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from tqdm import tqdm

from benchmarks.shared.ours import BACKENDS
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.measure import sample_actions
from xuance_envs.report import markdown_table

Moments = list[tuple[float, float]]


def recording(env_id: str) -> Any:
    """Make an environment whose ``moments`` are the start and end of each step of its group.

    All processes read the same clock.
    """
    from xuance_envs.engine.group.env_group import EnvGroup

    if not hasattr(EnvGroup, "moments"):
        EnvGroup.moments = []  # type: ignore[attr-defined]
        step: Callable[..., Any] = EnvGroup.step

        def timed(group: EnvGroup, *actions: Any) -> Any:
            start = perf_counter()
            outcome = step(group, *actions)
            EnvGroup.moments.append((start, perf_counter()))  # type: ignore[attr-defined]
            return outcome

        EnvGroup.step = timed  # type: ignore[method-assign]
    env = Gym_Env(env_id)
    env.moments = EnvGroup.moments  # type: ignore[attr-defined]
    env.pid = os.getpid()  # type: ignore[attr-defined]
    return env


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("anatomy", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--steps", type=int, default=4000, help="vector steps (default: %(default)s)")
    add("--backend", choices=BACKENDS, default="subproc", help="default: %(default)s")
    add_outputs(parser, "anatomy table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    rows = measure_anatomy(args)
    print(f"\n{args.num_envs} × {args.env}, {BACKENDS[args.backend].title}, µs per vector step\n")
    header = ("part", "p10", "median", "p90")
    table = [[part, *(f"{value * 1e6:.1f}" for value in deciles(v))] for part, v in rows.items()]
    text = markdown_table(header, table)
    print(text)
    finish(args, __doc__, run, text, results=rows)


def measure_anatomy(args: argparse.Namespace) -> dict[str, list[float]]:
    """Step, and align the main process's timestamps with those of the groups."""
    functions = [partial(recording, args.env)] * args.num_envs
    with BACKENDS[args.backend].make(functions) as vec_env:
        vec_env.reset(seed=0)
        calls: list[tuple[float, float, float]] = []
        actions = cycle(sample_actions(vec_env.action_space, args.num_envs))
        batches = islice(actions, args.steps)
        for batch in tqdm(batches, total=args.steps, unit="step", dynamic_ncols=True, disable=None):
            start = perf_counter()
            vec_env.step_async(batch)
            asked = perf_counter()
            vec_env.step_wait()
            calls.append((start, asked, perf_counter()))
        pids = vec_env.get_attr("pid")  # each process has one group
        firsts = [pids.index(pid) for pid in dict.fromkeys(pids)]
        groups: list[Moments] = [
            moments[-args.steps :] for moments in vec_env.get_attr("moments", env_ids=firsts)
        ]
    rows = {"step_async": [asked - start for start, asked, _ in calls]}
    for number, moments in enumerate(groups):
        pairs = list(zip(moments, calls, strict=True))
        rows[f"until group {number} starts"] = [begin - call[0] for (begin, _), call in pairs]
        rows[f"group {number} steps"] = [end - begin for (begin, end), _ in pairs]
    last = [max(end for _, end in ends) for ends in zip(*groups, strict=True)]
    rows["from the last group's end"] = [
        call[2] - end for call, end in zip(calls, last, strict=True)
    ]
    rows["total"] = [end - start for start, _, end in calls]
    return rows


def deciles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 10th percentile, the median and the 90th percentile."""
    tenths = statistics.quantiles(values, n=10)
    return tenths[0], statistics.median(values), tenths[8]


if __name__ == "__main__":
    main()
