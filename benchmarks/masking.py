"""Measure MaskablePPO's rollouts with several vectorized environments, and the upper bound.

sb3-contrib's agent reads the masks of all environments before each step. The environments have 64
actions, compute in each step, and return masks from a method. A run with prepared steps and masks,
which cost nothing, shows the agent's own time. A second such run shows the upper bound: each step
lasts for the environments' computing time divided by the number of CPUs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common import vec_env as sb3

from benchmarks.infos import ALLOWED, MaskingEnv
from benchmarks.shared.contest import race
from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from xuance_envs.compat import sb3 as compat
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.measure import Runner, Throughput
from xuance_envs.report import markdown_table

ROLLOUT = 256
"""Steps of each environment per rollout."""


class Prepared(sb3.VecEnv):
    """A vectorized environment that replays prepared steps, after ``seconds`` of busy waiting."""

    def __init__(self, functions: Sequence[Callable[[], Any]], seconds: float = 0.0) -> None:
        self._seconds = seconds
        env = functions[0]()
        super().__init__(len(functions), env.observation_space, env.action_space)
        self._observations = np.stack([env.reset()[0]] * self.num_envs)
        self._rewards = np.ones(self.num_envs)
        self._dones = np.zeros(self.num_envs, np.bool_)
        self._infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False}] * self.num_envs
        self._masks = [ALLOWED] * self.num_envs

    def reset(self) -> Any:
        return self._observations

    def step_async(self, actions: Any) -> None:
        pass

    def step_wait(self) -> Any:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        return self._observations, self._rewards, self._dones, self._infos

    def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self._masks

    def has_attr(self, attr_name: str) -> bool:
        return True

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        pass

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def contenders(
    num_envs: int, work: float
) -> dict[str, Callable[[Sequence[Callable[[], Any]]], sb3.VecEnv]]:
    """Return constructors by title; environments compute for ``work`` seconds per step."""
    together = num_envs * work / min(available_cpus(), num_envs)
    return {
        "SB3 SubprocVecEnv": sb3.SubprocVecEnv,
        "compat SubprocVecEnv": compat.SubprocVecEnv,
        "compat SubprocVecEnv, caller_steps": partial(compat.SubprocVecEnv, caller_steps=True),
        "prepared, after computing": partial(Prepared, seconds=together),
        "prepared": Prepared,
    }


class Rollouts:
    """A runner of MaskablePPO's rollouts, without updates.

    It counts its CPU seconds in ``busy`` and all environment steps in ``steps``.
    """

    def __init__(self, vec_env: sb3.VecEnv) -> None:
        self.num_envs = vec_env.num_envs
        self.busy, self.steps = 0.0, 0
        self._model = MaskablePPO("MlpPolicy", vec_env, n_steps=ROLLOUT, seed=0, device="cpu")
        _, self._callback = self._model._setup_learn(1 << 30)

    def run(self, steps: int) -> float:
        model = self._model
        start, busy = time.perf_counter(), time.process_time()
        for done in range(0, steps, ROLLOUT):
            length = min(ROLLOUT, steps - done)
            model.collect_rollouts(model.env, self._callback, model.rollout_buffer, length)
        self.busy += time.process_time() - busy
        self.steps += steps * self.num_envs
        return time.perf_counter() - start


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("masking", __doc__)
    add = parser.add_argument
    add("--num-envs", type=int, default=8, metavar="N", help="default: %(default)s")
    add(
        "--work",
        type=float,
        default=50.0,
        metavar="US",
        help="microseconds of a step (default: %(default)s)",
    )
    add_rounds(parser)
    add_outputs(parser, "masking table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(1)
    run = begin()
    notes: list[str] = []
    rollouts: dict[str, Rollouts] = {}

    def make(stack: ExitStack) -> dict[str, Runner]:
        work = args.work * 1e-6
        functions = [partial(MaskingEnv, work)] * args.num_envs
        for name, kind in contenders(args.num_envs, work).items():
            vec_env = kind(functions)
            stack.callback(vec_env.close)
            rollouts[name] = Rollouts(vec_env)
        return {**rollouts}

    measured = race(args, "rollouts", make, notes.append)
    theirs = measured["SB3 SubprocVecEnv"]
    found = [record(result, rollouts[name], theirs) for name, result in measured.items()]
    header = ("vectorized environment", "steps/s", "× SB3's", "main process CPU µs per step")
    rows = [
        [
            row["contender"],
            f"{row['steps_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['busy'] * 1e6:.1f}",
        ]
        for row in found
    ]
    text = with_notes(markdown_table(header, rows), notes)
    print(f"\nMaskablePPO, {args.num_envs} environments of {args.work:g} µs\n\n{text}")
    finish(args, __doc__, run, text, notes=notes, results=found)


def record(result: Throughput, rollouts: Rollouts, theirs: Throughput) -> dict[str, Any]:
    return {
        "contender": result.name,
        "steps_per_second": result.median,
        "rounds": result.rates,
        "ratio": result.relative_to(theirs),
        "busy": rollouts.busy / rollouts.steps,
    }


if __name__ == "__main__":
    main()
