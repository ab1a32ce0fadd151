"""How long from construction to the first observations, by start method?"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from benchmarks.ours import BACKENDS, WRAPPERS
from benchmarks.record import describe_run, save, summary
from xuance_envs.report import markdown_table

ROOT = Path(__file__).parents[1]
PEER = "Gymnasium Async"
OURS = {BACKENDS[name].title: BACKENDS[name] for name in ("subproc", "caller", "one-each")}
CONTENDERS = (*OURS, PEER)


def seconds_to_first_reset(name: str, context: str, env_id: str, num_envs: int) -> float:
    """Run once, in this process; imports of this process are not part of the time."""
    make_one = gymnasium.make if name == PEER else WRAPPERS["gym_env"]
    make_many = gymnasium.vector.AsyncVectorEnv if name == PEER else OURS[name].make
    start = time.perf_counter()
    vec_env = make_many([partial(make_one, env_id)] * num_envs, context=context)
    vec_env.reset(seed=0)
    seconds = time.perf_counter() - start
    vec_env.close()
    return seconds


def in_fresh_process(name: str, context: str, env_id: str, num_envs: int) -> float:
    """The same in a process of its own, whose main module has nothing that workers import."""
    call = f"seconds_to_first_reset({name!r}, {context!r}, {env_id!r}, {num_envs})"
    code = f"import benchmarks.startup as startup; print(startup.{call})"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(answer.stdout)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=16, metavar="N", help="default: %(default)s")
    methods = ["spawn", "forkserver", "fork"]
    add("--contexts", nargs="+", choices=methods, default=methods)
    add("--rounds", type=int, default=5, help="starts of each contender, interleaved")
    add("--json", type=Path, metavar="FILE", help="keep everything that was measured")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = describe_run()
    print(summary(run), flush=True)
    seconds = measure_starts(args)
    print(f"\n{args.num_envs} × {args.env}, seconds to the first reset, {args.rounds} rounds\n")
    results = [result(context, name, seconds) for context, name in seconds]
    rows = [
        [
            row["context"],
            row["contender"],
            f"{row['seconds']:.2f}",
            f"{min(row['rounds']):.2f}-{max(row['rounds']):.2f}",
            f"{row['relative_to_peer']:.2f}",
        ]
        for row in results
    ]
    header = ("start method", "contender", "seconds", "range", f"time of {PEER}")
    print(markdown_table(header, rows, words=2))
    if args.json:
        settings = {"env": args.env, "environments": args.num_envs}
        save(args.json, __doc__, run, settings=settings, results=results)


def measure_starts(args: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Seconds per round, by start method and contender."""
    seconds: dict[tuple[str, str], list[float]] = {
        (context, name): [] for context in args.contexts for name in CONTENDERS
    }
    order = list(seconds)
    with tqdm(total=len(order) * args.rounds, unit="start", dynamic_ncols=True) as bar:
        for _ in range(args.rounds):
            for context, name in order:
                bar.set_description(f"{context}, {name}")
                seconds[context, name].append(
                    in_fresh_process(name, context, args.env, args.num_envs)
                )
                bar.update()
            order.reverse()
    return seconds


def result(context: str, name: str, seconds: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    """The row of one contender; its ratio to the peer is the median over the rounds."""
    own, peer = seconds[context, name], seconds[context, PEER]
    return {
        "context": context,
        "contender": name,
        "seconds": float(np.median(own)),
        "rounds": own,
        "relative_to_peer": float(np.median(np.divide(own, peer))),
    }


if __name__ == "__main__":
    main()
