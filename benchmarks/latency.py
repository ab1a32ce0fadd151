"""Measure the latency of one vector step: median and 99th percentile."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from benchmarks.peers import PEERS
from benchmarks.shared.contenders import CONTENDERS, DEFAULT, join
from benchmarks.shared.contest import Results, imports_uncollected, in_turn
from benchmarks.shared.ours import WRAPPERS
from benchmarks.shared.question import (
    add_outputs,
    add_peers,
    begin,
    chosen_peers,
    finish,
    make_parser,
    with_notes,
)
from xuance_envs.measure import Runner
from xuance_envs.report import markdown_table


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("latency", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, nargs="+", default=[8, 64], metavar="N")
    add("--contenders", nargs="+", choices=CONTENDERS, default=list(DEFAULT), metavar="NAME")
    add_peers(parser, PEERS)
    add("--rounds", type=int, default=10, help="interleaved turns of each implementation")
    add("--steps", type=int, default=300, help="individually timed vector steps per turn")
    add_outputs(parser, "latency table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    results = Results()
    found = [row for n in dict.fromkeys(args.num_envs) for row in measure_size(args, n, results)]
    header = ("environments", "implementation", "p50, µs", "p99, µs", "p99 / p50")
    rows = [
        [
            f"{row['environments']}",
            row["contender"],
            f"{row['p50'] * 1e6:,.0f}",
            f"{row['p99'] * 1e6:,.0f}",
            f"{row['p99'] / row['p50']:.1f}",
        ]
        for row in found
    ]
    text = with_notes(markdown_table(header, rows, words=2), results.notes)
    print(f"\n{args.env}, one vector step, {args.rounds} rounds of {args.steps} steps\n\n{text}")
    finish(args, __doc__, run, text, notes=results.notes, results=found)


def measure_size(args: argparse.Namespace, num_envs: int, results: Results) -> list[dict[str, Any]]:
    """Measure all implementations with one number of environments; return their rows."""
    names = dict.fromkeys([*args.contenders, *chosen_peers(args, PEERS)])
    with gymnasium.make(args.env) as env:
        space = env.action_space
    functions = [partial(WRAPPERS["gymnasium"], args.env)] * num_envs
    with ExitStack() as stack:
        what = f"{num_envs} environments"
        runners = join(names, functions, space, what, stack, results.note, args.env)
        stack.enter_context(imports_uncollected())
        seconds = time_each_step(args, runners, what)
    return [
        {
            "environments": num_envs,
            "contender": name,
            "p50": float(np.median(times)),
            "p99": float(np.percentile(times, 99)),
            "p50 by round": np.median(times, axis=1).tolist(),
        }
        for name, times in seconds.items()
    ]


def time_each_step(
    args: argparse.Namespace, runners: Mapping[str, Runner], what: str
) -> dict[str, list[list[float]]]:
    """Return the seconds of each step by implementation and round, after a warm-up."""
    seconds: dict[str, list[list[float]]] = {name: [] for name in runners}
    for _, name in in_turn(runners, range(args.rounds), "run", what):
        gc.collect()
        run = runners[name].run
        run(max(1, args.steps // 10))
        seconds[name].append([run(1) for _ in range(args.steps)])
    return seconds


if __name__ == "__main__":
    main()
