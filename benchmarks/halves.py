"""Measure double buffering, and its upper bound, with an agent that waits for an accelerator."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.shared.contest import race
from benchmarks.shared.on_ray import BusyEnv
from benchmarks.shared.question import add_outputs, add_rounds, begin, finish, make_parser
from benchmarks.shared.rollouts import Rollouts
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Gym
from xuance_envs.measure import Runner
from xuance_envs.report import markdown_table
from xuance_envs.rollout import RolloutCollector

STEPS = 16
"""Steps of each environment per rollout."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("halves", __doc__)
    add = parser.add_argument
    add("--num-envs", type=int, default=16, help="default: %(default)s")
    add("--workers", type=int, default=4, metavar="N", help="default: %(default)s")
    add(
        "--work",
        type=float,
        default=0.5,
        metavar="MS",
        help="milliseconds of a step (default: %(default)s)",
    )
    add(
        "--think",
        type=float,
        default=0.25,
        metavar="MS",
        help="milliseconds that the agent sleeps per environment (default: %(default)s)",
    )
    add_rounds(parser, seconds=0.5)
    add_outputs(parser, "halves tables")
    return parser.parse_args(argv)


class Waiting:
    """An agent that sleeps instead of computing on an accelerator.

    It sleeps for ``seconds`` per environment.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        time.sleep(self._seconds * len(states))
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing, None


class BareLoop:
    """The upper bound: a loop that sleeps while processes compute on request."""

    def __init__(self, args: argparse.Namespace, halves: int, stack: ExitStack) -> None:
        self.num_envs = args.num_envs
        self._seconds = args.think / 1e3 * args.num_envs / halves
        context = multiprocessing.get_context("spawn")
        pipes = []
        for _ in range(args.workers):
            ours, theirs = context.Pipe()
            each = args.num_envs // args.workers
            work = (theirs, [args.work / 1e3] * each)
            process = context.Process(target=work_when_told, args=work, daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(ours.close)
            theirs.close()
            pipes.append(ours)
        size = args.workers // halves
        self._halves = [pipes[k : k + size] for k in range(0, args.workers, size)]

    def run(self, steps: int) -> float:
        start = time.perf_counter()
        for half in self._halves:
            self._send(half)
        for step in range(1, steps + 1):
            for half in self._halves:
                for pipe in half:
                    pipe.recv_bytes()
                if step < steps:
                    self._send(half)
        return time.perf_counter() - start

    def _send(self, half: Sequence[Connection]) -> None:
        time.sleep(self._seconds)
        for pipe in half:
            pipe.send_bytes(b"!")


def work_when_told(pipe: Connection, work: Sequence[float]) -> None:
    """Step environments that compute for a given time, on each request from the pipe."""
    envs = [BusyEnv(seconds) for seconds in work]
    try:
        while pipe.recv_bytes():
            for env in envs:
                env.step(0)
            pipe.send_bytes(b"!")
    except EOFError:
        return


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()

    def make_runners(stack: ExitStack) -> dict[str, Runner]:
        runners: dict[str, Runner] = {}
        for halves in (1, 2):
            functions = [partial(BusyEnv, args.work / 1e3)] * args.num_envs
            envs = SubprocVecEnv_Gym(functions, in_series=args.num_envs // args.workers, copy=False)
            agent = Waiting(args.think / 1e3)
            collector = RolloutCollector(envs, agent, STEPS, device="cpu", halves=halves)
            stack.callback(collector.close)
            runners[f"RolloutCollector, halves={halves}"] = Rollouts(
                collector.rollout, args.num_envs, STEPS
            )
            runners[f"a bare loop, halves={halves}"] = BareLoop(args, halves, stack)
        return runners

    what = f"{args.num_envs} × {args.work:g} ms, agent {args.think:g} ms per environment"
    one, bare_one, two, bare_two = race(args, what, make_runners, print).values()
    rows = [
        [name, f"{whole.median:,.0f}", f"{halved.median:,.0f}", f"{halved.relative_to(whole):.2f}"]
        for name, whole, halved in (
            ("RolloutCollector", one, two),
            ("a bare loop", bare_one, bare_two),
        )
    ]
    table = markdown_table(("steps/s", "halves=1", "halves=2", "ratio"), rows)
    print(f"\n{what}, {args.workers} workers, {args.rounds} rounds\n\n{table}")
    finish(args, __doc__, run, table, results={"rows": rows})


if __name__ == "__main__":
    main()
