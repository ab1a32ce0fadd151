"""Measure the cost of info dicts, with environments that only return them.

With --work, the environments also compute in each step. With --masks, they provide masks of 64
actions, and the main process reads the masks after each step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.shared.contest import Results, race
from benchmarks.shared.envs import MadeUpEnv
from benchmarks.shared.ours import BACKENDS
from benchmarks.shared.question import begin, finish, with_notes
from benchmarks.shared.sweep import Sweep, answer, sweep_parser, sweep_records, sweep_table
from xuance_envs.measure import Runner, StepLoop, sample_actions
from xuance_envs.vector_envs.vector_env import VecEnv


def numbers(count: int) -> dict[str, float]:
    return {f"number_{k}": k / 2 for k in range(count)}


ALLOWED = np.arange(64) % 2 == 0

INFOS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "2 numbers": numbers(2),
    "20 numbers": numbers(20),
    "a string": {"words": "what cannot be a column"},
    "1 kB array": {"array": np.zeros(128)},
}


class MaskingEnv(MadeUpEnv):
    """An environment with 64 actions, and a method that returns the mask."""

    action_space = spaces.Discrete(64)

    def action_masks(self) -> NDArray[np.bool_]:
        return ALLOWED


class SilentEnv(MadeUpEnv):
    """An environment with 64 actions, without a method for masks; its info may have a mask."""

    action_space = spaces.Discrete(64)


class Asking:
    """A runner that steps and reads the action masks after each step."""

    def __init__(self, vec_env: VecEnv) -> None:
        self._vec_env = vec_env

    def step(self, actions: Any) -> Any:
        result = self._vec_env.step(actions)
        self._vec_env.action_masks()
        return result


MASKS: dict[str, Callable[..., Any]] = {
    "no masks": SilentEnv,
    "masks in infos": partial(SilentEnv, info={"action_mask": ALLOWED}),
    "masks from a method": MaskingEnv,
}


def measure_masks(args: argparse.Namespace, results: Results) -> Sweep:
    """Time the backends with and without masks, in the same rounds."""
    backends = [BACKENDS[name] for name in args.contenders if name in BACKENDS]
    actions = sample_actions(SilentEnv.action_space, args.num_envs)

    def make(stack: ExitStack) -> dict[str, Runner]:
        runners: dict[str, Runner] = {}
        for backend in backends:
            for what, env_fn in MASKS.items():
                functions = [partial(env_fn, args.work * 1e-6)] * args.num_envs
                vec_env = stack.enter_context(backend.make(functions))
                vec_env.reset(seed=0)
                stepped = vec_env if env_fn is SilentEnv else Asking(vec_env)
                name = f"{backend.title}: {what}"
                runners[name] = StepLoop(stepped, args.num_envs, actions)
        return runners

    measured = race(args, "masks", make, results.note)
    return {
        what: {
            backend.title: replace(measured[f"{backend.title}: {what}"], name=backend.title)
            for backend in backends
        }
        for what in MASKS
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = sweep_parser("infos", __doc__, num_envs=16)
    parser.add_argument("--infos", nargs="+", choices=INFOS, default=list(INFOS), metavar="INFO")
    parser.add_argument(
        "--work",
        type=float,
        default=0.0,
        metavar="US",
        help="microseconds of a step (default: none)",
    )
    parser.add_argument(
        "--masks", action="store_true", help="measure action masks instead of infos"
    )
    args = parser.parse_args(argv)
    label = "content of each info"
    env_fns = {name: partial(MadeUpEnv, args.work * 1e-6, info=INFOS[name]) for name in args.infos}
    if not args.masks:
        answer(args, __doc__, label, env_fns)
        return
    run, results = begin(), Results()
    sweep = measure_masks(args, results)
    text = with_notes(sweep_table("masks", sweep), results.notes)
    print(f"\n{args.num_envs} environments\n\n{text}")
    finish(args, __doc__, run, text, notes=results.notes, results=sweep_records(sweep))


if __name__ == "__main__":
    main()
