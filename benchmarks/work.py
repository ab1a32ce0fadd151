"""Measure the step duration above which worker processes are faster than one process.

The environments only compute for a number of microseconds. The script interpolates between the
two neighboring measurements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

from benchmarks.shared.contest import Results
from benchmarks.shared.envs import MadeUpEnv
from benchmarks.shared.question import begin, finish, with_notes
from benchmarks.shared.sweep import (
    Sweep,
    draw_sweep,
    measure_sweep,
    sweep_parser,
    sweep_records,
    sweep_table,
)
from xuance_envs.report import markdown_table

PAIRS = (
    ("Subproc", "Dummy"),
    ("Subproc, caller_steps", "Dummy"),
    ("Gymnasium Async", "Gymnasium Sync"),
    ("SB3 Subproc", "SB3 Dummy"),
    ("Tianshou Shmem", "Tianshou Dummy"),
    ("TorchRL Parallel", "TorchRL Serial"),
)
"""Pairs of worker processes and the same library in one process."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = sweep_parser("work", __doc__, num_envs=16)
    works = [0.0, 10.0, 100.0, 1000.0]
    parser.add_argument("--work", type=float, nargs="+", default=works, metavar="MICROSECONDS")
    args = parser.parse_args(argv)
    run = begin()
    results = Results()
    works = sorted(set(args.work))
    env_fns = {f"{work:g} µs": partial(MadeUpEnv, work / 1e6) for work in works}
    sweep = measure_sweep(args, env_fns, results)
    crossings = cross(works, sweep)
    table = sweep_table("work per step", sweep)
    text = f"{with_notes(table, results.notes)}\n\n{crossing_table(crossings, works[-1])}"
    print(f"\n{args.num_envs} environments\n\n{text}")
    finish(
        *(args, __doc__, run, text),
        notes=results.notes,
        crossings=crossings,
        results=sweep_records(sweep),
    )
    if args.png:
        title = f"{args.num_envs} environments that compute, {run['machine']['cores']} cores"
        draw_sweep(args.png, title, "work per step", sweep)


def cross(works: Sequence[float], sweep: Sweep) -> dict[str, float | None]:
    """Return, for each pair, the microseconds from which workers are faster; None if never."""
    crossings: dict[str, float | None] = {}
    for workers, here in PAIRS:
        points = [
            (work, math.log(found[workers].relative_to(found[here])))
            for work, found in zip(works, sweep.values(), strict=True)
            if workers in found and here in found
        ]
        if points:
            crossings[f"{workers} and {here}"] = crossing(points)
    return crossings


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the x from which a line through points stays positive; None if it ends negative."""
    if points[-1][1] <= 0:
        return None
    for (low, below), (high, above) in reversed(list(itertools.pairwise(points))):
        if below <= 0 < above:
            return low + (high - low) * -below / (above - below)
    return points[0][0]


def crossing_table(crossings: dict[str, float | None], most: float) -> str:
    rows = [
        [pair, f"not up to {most:g} µs" if found is None else f"{found:,.0f} µs"]
        for pair, found in crossings.items()
    ]
    return markdown_table(["compared", "step duration from which workers are faster"], rows)


if __name__ == "__main__":
    main()
