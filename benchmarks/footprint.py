"""Measure the memory of each environment.

The script counts the RAM of the main process and its descendants after the first steps, minus the
main process's RAM before the environments were created. Shared pages count proportionally (PSS).
Each implementation runs in a fresh process.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from benchmarks.shared.contenders import CONTENDERS, DEFAULT, join
from benchmarks.shared.fresh import call_fresh
from benchmarks.shared.question import (
    add_outputs,
    add_peers,
    begin,
    chosen_peers,
    finish,
    make_parser,
    with_notes,
)
from xuance_envs.report import markdown_table

COUNTED = tuple(name for name in CONTENDERS if not name.startswith(("xuance", "pufferlib")))
"""Libraries that run in this process and its children. A separate Python would add memory."""

IMPORTS = {"sb3": "stable_baselines3.common.vec_env", "tianshou": "tianshou.env"}
IMPORTS |= {"torchrl": "torchrl.envs", "envpool": "envpool"}
"""Modules to import before counting."""

STEPS = 20


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("footprint", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, nargs="+", default=[16], metavar="N")
    add("--contenders", nargs="+", choices=COUNTED, default=list(DEFAULT), metavar="NAME")
    add_peers(parser, [name for name in COUNTED if name not in DEFAULT])
    add("--rounds", type=int, default=3, help="number of starts per implementation")
    add_outputs(parser, "footprint table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    notes: list[str] = []
    names = dict.fromkeys([*args.contenders, *chosen_peers(args, COUNTED)])
    cases = [(name, n) for n in dict.fromkeys(args.num_envs) for name in names]
    found = []
    for name, num_envs in tqdm(cases, unit="implementation", dynamic_ncols=True, disable=None):
        try:
            counts = [count_fresh(name, args.env, num_envs) for _ in range(args.rounds)]
        except RuntimeError as reason:
            notes.append(f"{CONTENDERS[name].title}, {num_envs}: left out, {reason}.")
        else:
            found.append(record(name, num_envs, counts))
    header = ("environments", "implementation", "processes", "MiB in total", "MiB per environment")
    rows = [
        [
            f"{row['environments']}",
            row["contender"],
            f"{row['processes']}",
            f"{row['mib']:,.1f}",
            f"{row['mib'] / row['environments']:.2f}",
        ]
        for row in found
    ]
    text = with_notes(markdown_table(header, rows, words=2), notes)
    print(f"\n{args.env}, additional memory\n\n{text}")
    finish(args, __doc__, run, text, notes=notes, results=found)


def record(name: str, num_envs: int, counts: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return one row, with the median over the starts."""
    return {
        "environments": num_envs,
        "contender": CONTENDERS[name].title,
        "processes": counts[0][0],
        "mib": float(np.median([mib for _, mib in counts])),
        "rounds": [mib for _, mib in counts],
    }


def count_fresh(name: str, env_id: str, num_envs: int) -> tuple[int, float]:
    """Call :func:`count` in a fresh process."""
    processes, mib = call_fresh("footprint", "count", name, env_id, num_envs)
    return processes, mib


def count(name: str, env_id: str, num_envs: int) -> tuple[int, float]:
    """Create environments; return the number of new processes and the additional MiB."""
    if name.partition("-")[0] in IMPORTS:
        __import__(IMPORTS[name.partition("-")[0]])
    with gymnasium.make(env_id) as env:
        space = env.action_space
    before = family_mib()
    reasons: list[str] = []
    with ExitStack() as stack:
        functions = [partial(gymnasium.make, env_id)] * num_envs
        what = f"{num_envs} environments"
        runners = join([name], functions, space, what, stack, reasons.append, env_id, False)
        if not runners:
            raise RuntimeError(reasons[-1])
        runners[CONTENDERS[name].title].run(STEPS)
        return len(family()) - 1, family_mib() - before


def family() -> list[int]:
    """Return this process and all its descendants."""
    pids, waiting = [], [os.getpid()]
    while waiting:
        pids.append(waiting.pop())
        lists = Path(f"/proc/{pids[-1]}/task").glob("*/children")
        waiting += [int(pid) for path in lists for pid in path.read_text().split()]
    return pids


def family_mib() -> float:
    """Return the RAM of this process and its descendants, in MiB."""
    return sum(map(pss_mib, family()))


def pss_mib(pid: int) -> float:
    """Return a process's proportional set size in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
