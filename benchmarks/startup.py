"""Measure the time from construction to the first observations, by start method."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from benchmarks.peers.torchrl import wrapped
from benchmarks.shared.fresh import call_fresh
from benchmarks.shared.ours import BACKENDS, WRAPPERS
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

PEER = "Gymnasium Async"


def gymnasium_async(functions: Sequence[Callable[[], Any]], context: str) -> Any:
    return gymnasium.vector.AsyncVectorEnv(functions, context=context)


def sb3_subproc(functions: Sequence[Callable[[], Any]], context: str) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv(list(functions), start_method=context)


def torchrl_parallel(functions: Sequence[Callable[[], Any]], context: str) -> Any:
    from torchrl.envs import ParallelEnv

    wrappers = [partial(wrapped, function) for function in functions]
    return ParallelEnv(len(functions), wrappers, mp_start_method=context)


OTHERS: dict[str, Callable[[Sequence[Callable[[], Any]], str], Any]] = {
    PEER: gymnasium_async,
    "SB3 Subproc": sb3_subproc,
    "TorchRL Parallel": torchrl_parallel,
}
"""Other libraries, with a process per environment and the given start method."""

PEERS = {"sb3-subproc": "SB3 Subproc", "torchrl-parallel": "TorchRL Parallel"}
OURS = {BACKENDS[name].title: BACKENDS[name] for name in ("subproc", "caller", "one-each")}


def seconds_to_first_reset(name: str, context: str, env_id: str, num_envs: int) -> float:
    """Return the seconds of one start in this process, without the imports."""
    functions = [partial(WRAPPERS["gym_env" if name in OURS else "gymnasium"], env_id)] * num_envs
    if name == PEERS["sb3-subproc"]:
        __import__("stable_baselines3.common.vec_env")
    elif name == PEERS["torchrl-parallel"]:
        __import__("torchrl.envs")
    start = time.perf_counter()
    if name in OURS:
        vec_env: Any = OURS[name].make(functions, context=context)
    else:
        vec_env = OTHERS[name](functions, context)
    vec_env.reset()
    seconds = time.perf_counter() - start
    vec_env.close()
    return seconds


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("startup", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=16, metavar="N", help="default: %(default)s")
    methods = ["spawn", "forkserver", "fork"]
    add("--contexts", nargs="+", choices=methods, default=methods)
    add_peers(parser, PEERS)
    add("--rounds", type=int, default=5, help="interleaved starts of each implementation")
    add_outputs(parser, "startup table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    notes: list[str] = []
    seconds = measure_starts(args, notes)
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
    header = ("start method", "implementation", "seconds", "range", f"time / {PEER}")
    text = with_notes(markdown_table(header, rows, words=2), notes)
    print(text)
    finish(args, __doc__, run, text, notes=notes, results=results)


def measure_starts(
    args: argparse.Namespace, notes: list[str]
) -> dict[tuple[str, str], list[float]]:
    """Return seconds per round, by start method and implementation; skip those that fail."""
    names = [*OURS, PEER, *(PEERS[name] for name in chosen_peers(args, PEERS))]
    seconds: dict[tuple[str, str], list[float]] = {
        (context, name): [] for context in args.contexts for name in names
    }
    order = list(seconds)
    with tqdm(
        total=len(order) * args.rounds, unit="start", dynamic_ncols=True, disable=None
    ) as bar:
        for _ in range(args.rounds):
            for context, name in list(order):
                bar.set_description(f"{context}, {name}")
                call = ("seconds_to_first_reset", name, context, args.env, args.num_envs)
                try:
                    seconds[context, name].append(call_fresh("startup", *call))
                except RuntimeError as reason:
                    notes.append(f"{name} under {context}: left out, {reason}.")
                    order.remove((context, name))
                    del seconds[context, name]
                bar.update()
            order.reverse()
    return seconds


def result(context: str, name: str, seconds: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    """Return one row; its ratio is the median over the rounds."""
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
