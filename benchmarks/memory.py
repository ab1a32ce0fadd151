"""Check that memory stays flat over a million environment steps."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.shared.ours import BACKENDS, make_ours
from benchmarks.shared.question import add_outputs, begin, finish, make_parser, with_notes
from xuance_envs.measure import sample_actions
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.vector_env import VecEnv

SETTLING = 0.2
"""Fraction of the run to ignore, while caches and the allocator's arenas fill up."""
FLAT_MIB = 1.0
"""Limit of growth per million environment steps.

The allocator's arenas grow and shrink by this size at a time. A leak of one float per step would be
8 to 24 MiB.
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("memory", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--steps", type=int, default=1_000_000, help="environment steps (default: %(default)s)")
    add("--samples", type=int, default=100, help="memory samples (default: %(default)s)")
    add("--backends", nargs="+", choices=BACKENDS, default=["dummy", "subproc"])
    add_outputs(parser, "memory table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    results = [row for name in args.backends for row in measure_memory(args, name)]
    print(
        f"\n{args.num_envs} × {args.env}, resident memory over {args.steps:,} environment steps\n"
    )
    header = ("backend", "process", "MiB at start", "MiB at end", "MiB per 10⁶ steps", "flat")
    rows = [
        [
            row["backend"],
            row["process"],
            f"{row['mib'][0]:.1f}",
            f"{row['mib'][-1]:.1f}",
            f"{round(row['mib_per_million_steps'], 2) + 0.0:.2f}",
            "yes" if row["flat"] else "NO",
        ]
        for row in results
    ]
    flat = (
        f"Flat: after the first {SETTLING:.0%} of the steps, memory grows by at most "
        f"{FLAT_MIB:g} MiB per million steps."
    )
    text = with_notes(markdown_table(header, rows, words=2), [flat])
    print(text)
    finish(args, __doc__, run, text, results=results)


def measure_memory(args: argparse.Namespace, backend_name: str) -> list[dict[str, Any]]:
    """Step one backend and sample the memory of all its processes; return a row per process."""
    backend = BACKENDS[backend_name]
    before = children()
    with make_ours(backend, "gym_env", args.env, args.num_envs) as vec_env:
        actions = cycle(sample_actions(vec_env.action_space, args.num_envs))
        processes = {"main process": os.getpid()}
        workers = [pid for pid in sorted(children() - before) if not is_resource_tracker(pid)]
        processes |= {f"worker {index}": pid for index, pid in enumerate(workers)}
        calls = max(1, args.steps // args.num_envs // args.samples)
        steps: list[int] = []
        resident: dict[str, list[float]] = {name: [] for name in processes}
        for _ in tqdm(
            range(args.samples), desc=backend.title, unit="sample", dynamic_ncols=True, disable=None
        ):
            for batch in islice(actions, calls):
                step_as_an_agent_does(vec_env, batch)
            steps.append((len(steps) + 1) * calls * args.num_envs)
            for name, pid in processes.items():
                resident[name].append(resident_mib(pid))
    rows = []
    for name, mib in resident.items():
        growth = growth_per_million(steps, mib)
        rows.append(
            {
                "backend": backend.title,
                "process": name,
                "mib_per_million_steps": growth,
                "flat": growth <= FLAT_MIB,
                "steps": steps,
                "mib": mib,
            }
        )
    return rows


def step_as_an_agent_does(vec_env: VecEnv, actions: Any) -> None:
    """Make one step, and read the info of every finished episode."""
    _, _, terminated, truncated, infos = vec_env.step(actions)
    for index in np.flatnonzero(terminated | truncated).tolist():
        vec_env.buf_obs[index] = infos[index]["reset_obs"]


def growth_per_million(steps: Sequence[int], mib: Sequence[float]) -> float:
    """Return the slope of a line through the samples after settling, in MiB."""
    first = int(len(steps) * SETTLING)
    slope, _ = np.polyfit(np.divide(steps[first:], 1e6), mib[first:], 1)
    return float(slope)


def children() -> set[int]:
    """Return the running child processes of all threads."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in lists for pid in path.read_text().split()}


def is_resource_tracker(pid: int) -> bool:
    """Return whether the process is multiprocessing's resource tracker."""
    return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def resident_mib(pid: int) -> float:
    """Return a process's resident memory, including shared pages."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
