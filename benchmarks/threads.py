"""Compare threads and coroutines with worker processes, an optimum, and TorchRL's AsyncEnvPool.

Each case has a reference, and each implementation runs in a fresh process:

- ``waiting``: environments that sleep in each step, in threads and in one process each. At the
  optimum, all of them sleep at the same time.
- ``coroutines``: environments that sleep with ``asyncio.sleep``, on one event loop.
- ``recv``: environments that sleep for 10 to 500 ms, received in batches of at least 16. At the
  optimum, no environment waits for another.
- ``torchrl``: environments that do nothing, or sleep, against TorchRL's ``AsyncEnvPool`` with its
  threads. Use ``--peers`` in a virtual environment that has TorchRL. TorchRL's backend
  ``asyncio`` is not compared, because TorchRL has not implemented it.
- ``computing``: CartPole and HalfCheetah, in threads, in worker processes, and in loops in two
  processes and in two threads. Run it in a free-threaded Python, too: with the global interpreter
  lock (GIL), threads that compute run one at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from benchmarks.footprint import family_mib
from benchmarks.shared.envs import AsyncSleepingEnv, IdleEnv, SleepingEnv, VaryingSleepEnv
from benchmarks.shared.fresh import call_fresh
from benchmarks.shared.question import (
    add_outputs,
    add_peers,
    begin,
    chosen_peers,
    finish,
    make_parser,
)
from xuance_envs.engine.cpus import gil_is_enabled
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

Make = Callable[[], Any]
Runner = Callable[[Sequence[Make], float], list[float]]
"""Function that returns the seconds to the first observations, the MiB and the steps/s."""

CARTPOLE = partial(gymnasium.make, "CartPole-v1")
HALF_CHEETAH = partial(gymnasium.make, "HalfCheetah-v5")
BATCH = 16
HEADER = (
    *("case", "implementation", "start, s", "MiB", "steps/s"),
    *("× first of the case", "of the optimum"),
)


def steps(kind: Callable[..., VecEnv], env_fns: Sequence[Make], seconds: float) -> list[float]:
    before, began = family_mib(), time.perf_counter()
    with kind(env_fns) as envs:
        envs.reset(seed=0)
        start, mib = time.perf_counter() - began, family_mib() - before
        actions = envs.sample_actions(np.random.default_rng(0))
        return [start, mib, rate(lambda: envs.step(actions), seconds) * len(env_fns)]


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Return how often a function can be called in a second."""
    call()
    began, count = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        call()
        count += 1
    return count / (time.perf_counter() - began)


def receive(env_fns: Sequence[Make], seconds: float) -> list[float]:
    before, began = family_mib(), time.perf_counter()
    with ThreadVecEnv(env_fns, in_series=1) as envs:
        envs.reset(seed=0)
        start, mib = time.perf_counter() - began, family_mib() - before
        envs.send([0] * len(env_fns), range(len(env_fns)))
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            ids = envs.recv(min_envs=BATCH).env_ids
            count += len(ids)
            envs.send([0] * len(ids), ids)
        return [start, mib, count / (time.perf_counter() - began)]


def torchrl_pool(env_fns: Sequence[Make], seconds: float) -> list[float]:
    from torchrl.envs import AsyncEnvPool

    from benchmarks.peers.torchrl import TensorSteps, wrapped

    before, began = family_mib(), time.perf_counter()
    functions = [partial(wrapped, make) for make in env_fns]
    pool = AsyncEnvPool(functions, backend="threading")
    try:
        envs = TensorSteps(pool)
        start, mib = time.perf_counter() - began, family_mib() - before
        import torch

        actions = torch.zeros(len(env_fns), dtype=torch.int64)
        return [start, mib, rate(lambda: envs.step(actions), seconds) * len(env_fns)]
    finally:
        pool.close()


def bare_loops(executor: type[Executor], env_fns: Sequence[Make], seconds: float) -> list[float]:
    """Step half of the environments in each of two workers, without a vectorized environment."""
    half = len(env_fns) // 2
    with executor(max_workers=2) as pool:  # type: ignore[call-arg]
        rates = list(pool.map(bare_loop, [env_fns[0]] * 2, [half] * 2, [seconds] * 2))
    return [np.nan, np.nan, sum(rates)]


def bare_loop(make: Make, num_envs: int, seconds: float) -> float:
    envs = [make() for _ in range(num_envs)]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    envs[0].action_space.seed(0)
    actions = [env.action_space.sample() for env in envs]

    def step() -> None:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return rate(step, seconds) * num_envs


THREADS = partial(steps, partial(ThreadVecEnv, in_series=1))
PROCESSES = partial(steps, partial(SubprocVecEnv, in_series=1, start_timeout=600))
COMPUTING: dict[str, Runner] = {
    "bare loop in two processes": partial(bare_loops, ProcessPoolExecutor),
    "bare loop in two threads": partial(bare_loops, ThreadPoolExecutor),
    "processes": partial(steps, partial(SubprocVecEnv, num_workers=2)),
    "threads": partial(steps, partial(ThreadVecEnv, num_workers=2)),
    "processes, caller_steps": partial(
        steps, partial(SubprocVecEnv, num_workers=1, caller_steps=True)
    ),
    "threads, caller_steps": partial(
        steps, partial(ThreadVecEnv, num_workers=1, caller_steps=True)
    ),
}
CASES: dict[str, tuple[int, Make, float, dict[str, Runner]]] = {
    "waiting, 64 × 5 ms": (
        *(64, partial(SleepingEnv, 5e-3), 5e-3),
        {"processes": PROCESSES, "threads": THREADS},
    ),
    "waiting, 256 × 100 ms": (256, partial(SleepingEnv, 0.1), 0.1, {"threads": THREADS}),
    "coroutines, 1,000 × 100 ms": (
        *(1000, partial(AsyncSleepingEnv, 0.1), 0.1),
        {
            "a group each": partial(steps, partial(ThreadVecEnv, in_series=1)),
            "one group": partial(steps, partial(ThreadVecEnv, in_series=1000)),
        },
    ),
    "coroutines, 256 × 5 ms": (
        *(256, partial(AsyncSleepingEnv, 5e-3), 5e-3),
        {
            "a group each": partial(steps, partial(ThreadVecEnv, in_series=1)),
            "one group": partial(steps, partial(ThreadVecEnv, in_series=256)),
        },
    ),
    "recv, 256 × 10 to 500 ms": (
        *(256, partial(VaryingSleepEnv, 0.01, 0.5), 0.255),
        {"threads": receive},
    ),
    "torchrl, 64 idle": (
        *(64, IdleEnv, 0.0),
        {"TorchRL AsyncEnvPool": torchrl_pool, "threads": THREADS},
    ),
    "torchrl, 256 × 5 ms": (
        *(256, partial(SleepingEnv, 5e-3), 5e-3),
        {"TorchRL AsyncEnvPool": torchrl_pool, "threads": THREADS},
    ),
    "computing, CartPole 8": (8, CARTPOLE, 0.0, COMPUTING),
    "computing, CartPole 64": (64, CARTPOLE, 0.0, COMPUTING),
    "computing, HalfCheetah 16": (16, HALF_CHEETAH, 0.0, COMPUTING),
}
"""Number of environments, their function, the seconds of a step, and the implementations.

The first implementation is the reference of the others.
"""


def run_case(case: str, implementation: str, seconds: float) -> list[float]:
    num_envs, make, _, runners = CASES[case]
    return runners[implementation]([make] * num_envs, seconds)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("threads", __doc__)
    add = parser.add_argument
    parts = list(dict.fromkeys(case.partition(",")[0] for case in CASES))
    add("--parts", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    add("--rounds", type=int, default=3, help="interleaved runs of each implementation")
    add("--seconds", type=float, default=3.0, help="duration of each run (default: %(default)s)")
    add_peers(parser, ["torchrl"])
    add_outputs(parser, "threads table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    cases = [case for case in CASES if case.partition(",")[0] in args.parts]
    if not chosen_peers(args, ["torchrl"]):
        cases = [case for case in cases if not case.startswith("torchrl")]
    if find_spec("mujoco") is None:
        cases = [case for case in cases if "HalfCheetah" not in case]
    results, rows = [], []
    tqdm.write(" | ".join(HEADER))
    for case in tqdm(cases, unit="case", dynamic_ncols=True, disable=None):
        num_envs, _, wait, runners = CASES[case]
        found: dict[str, list[list[float]]] = {name: [] for name in runners}
        for _ in range(args.rounds):
            for name in runners:
                found[name].append(call_fresh("threads", "run_case", case, name, args.seconds))
        reference = next(iter(found.values()))
        for name, rounds in found.items():
            ratios = [a[-1] / b[-1] for a, b in zip(rounds, reference, strict=True)]
            start, mib, speed = np.median(rounds, axis=0).tolist()
            share = speed * wait / num_envs
            results.append({"case": case, "contender": name, "rounds": rounds, "ratios": ratios})
            row = [
                case,
                name,
                "-" if np.isnan(start) else f"{start:.2f}",
                "-" if np.isnan(mib) else f"{mib:,.0f}",
                f"{speed:,.0f}",
                "-" if rounds is reference else f"{np.median(ratios):.2f}",
                f"{share:.2f}" if wait else "-",
            ]
            rows.append(row)
            tqdm.write(" | ".join(row))
    text = markdown_table(HEADER, rows, words=2)
    gil = "on" if gil_is_enabled() else "off"
    print(f"\nGIL {gil}, {args.rounds} rounds of {args.seconds:g} s\n\n{text}")
    finish(args, __doc__, run, text, gil=gil, results=results)


if __name__ == "__main__":
    main()
