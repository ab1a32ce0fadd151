"""Measure the cost per vector step of normalizing observations and rewards.

The script compares this package's transforms with Gymnasium's vector wrappers and
Stable-Baselines3's VecNormalize. Each interface replays the same recorded steps, so only the
wrapper is timed. The script also measures how much this package's transforms lower the throughput
of worker processes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward
from numpy.typing import NDArray

from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.report import markdown_table
from xuance_envs.transforms import NormalizeObservations, NormalizeRewards
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import StepResult, VecEnv

RECORDED = 256
"""Number of recorded steps to replay."""


class Recorded:
    """Recorded steps of an environment, for all three interfaces."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        self.num_envs = num_envs
        with DummyVecEnv([partial(Gym_Env, env_id)] * num_envs) as envs:
            self.spaces = envs.observation_space, envs.action_space
            self.first = envs.reset(seed=0)
            envs.action_space.seed(0)
            self.steps = []
            for _ in range(RECORDED):
                result = envs.step([envs.action_space.sample() for _ in range(num_envs)])
                self.steps.append((*result, envs.exact_rewards))
        self._number = 0

    def next(self) -> tuple[Any, ...]:
        self._number = (self._number + 1) % RECORDED
        return self.steps[self._number]


class Ours(VecEnv):
    """Recorded steps with this package's interface."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded.num_envs, *recorded.spaces)
        self._recorded = recorded
        self._exact = np.zeros(recorded.num_envs)
        self.buf_obs = recorded.first[0]

    @property
    def exact_rewards(self) -> NDArray[np.float64]:
        return self._exact.copy()

    def reset(self, *, seed: Any = None, options: Any = None, env_ids: Any = None) -> Any:
        return self._recorded.first

    def step_async(self, actions: Any) -> None:
        pass

    def step_wait(self) -> StepResult:
        *result, self._exact = self._recorded.next()
        return tuple(result)  # type: ignore[return-value]  # the five of them

    def close_extras(self) -> None:
        pass


class Gymnasiums(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Recorded steps with Gymnasium's interface."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self.num_envs = recorded.num_envs
        self.single_observation_space, self.single_action_space = recorded.spaces
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, self.num_envs)
        self.action_space = batch(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._recorded.first[0], {}

    def step(self, actions: Any) -> Any:
        obs, _, terminated, truncated, _, exact = self._recorded.next()
        return obs, exact, terminated, truncated, {}


def sb3(recorded: Recorded) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return step functions with Stable-Baselines3's interface, with and without normalization."""
    from stable_baselines3.common import vec_env

    class Theirs(vec_env.VecEnv):
        def __init__(self) -> None:
            super().__init__(recorded.num_envs, *recorded.spaces)
            self.infos: list[dict[str, Any]] = [{} for _ in range(recorded.num_envs)]

        def reset(self) -> Any:
            return recorded.first[0]

        def step_async(self, actions: Any) -> None:
            pass

        def step_wait(self) -> Any:
            obs, rewards, terminated, _, _, _ = recorded.next()
            return obs, rewards, terminated, self.infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        set_attr = env_method = env_is_wrapped = get_attr  # none of these is called

    normalized = vec_env.VecNormalize(Theirs())
    normalized.reset()
    return normalized.step, Theirs().step


def layers(recorded: Recorded) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    """Return, for each library, the step functions with and without normalization."""
    ours = NormalizeObservations(NormalizeRewards(Ours(recorded)))
    theirs = NormalizeReward(NormalizeObservation(Gymnasiums(recorded)))
    ours.reset()
    theirs.reset()
    return {
        "xuance_envs": (ours.step, Ours(recorded).step),
        "Gymnasium's wrappers": (theirs.step, Gymnasiums(recorded).step),
        "SB3's VecNormalize": sb3(recorded),
    }


def microseconds(step: Callable[[Any], Any], seconds: float) -> float:
    """Return this process's microseconds per call."""
    start, calls = time.process_time(), 0
    while (spent := time.process_time() - start) < seconds:
        for _ in range(100):
            step(None)
        calls += 100
    return 1e6 * spent / calls


def share_left(env_id: str, num_envs: int, rounds: int, seconds: float) -> list[float]:
    """Return the throughput with both transforms relative to that without transforms, by round."""
    make = partial(SubprocVecEnv, [partial(Gym_Env, env_id)] * num_envs)
    shares = []
    with make() as plain, NormalizeObservations(NormalizeRewards(make())) as normalized:
        actions = [plain.action_space.sample() for _ in range(num_envs)]
        each = (plain, normalized)
        for envs in each:
            envs.reset(seed=0)
        for number in range(rounds):
            rates = {}
            for envs in each if number % 2 else reversed(each):
                start, steps = time.perf_counter(), 0
                while (spent := time.perf_counter() - start) < seconds:
                    envs.step(actions)
                    steps += 1
                rates[envs] = steps / spent
            shares.append(rates[normalized] / rates[plain])
    return shares


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("transforms", __doc__)
    add = parser.add_argument
    add("--env", default="HalfCheetah-v5", metavar="ID", help="default: %(default)s")
    add(
        "--num-envs",
        type=int,
        default=64,
        help="environments for timing the wrappers (default: %(default)s)",
    )
    add(
        "--in-workers",
        type=int,
        default=16,
        metavar="N",
        help="environments in worker processes (default: %(default)s)",
    )
    add_rounds(parser)
    add_outputs(parser, "transforms table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    contenders = layers(Recorded(args.env, args.num_envs))
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(args.rounds):
        order = list(contenders.items())
        for name, steps in order if number % 2 else reversed(order):
            normalized, plain = (microseconds(step, args.seconds / 2) for step in steps)
            costs[name].append(normalized - plain)
    own = np.array(costs["xuance_envs"])
    found = [
        {"layer": name, "microseconds": cost, "ours": (own / cost).tolist()}
        for name, cost in costs.items()
    ]
    rows = [
        [row["layer"], f"{np.median(row['microseconds']):.1f}", f"{np.median(row['ours']):.2f}"]
        for row in found
    ]
    shares = share_left(args.env, args.in_workers, args.rounds, args.seconds)
    note = (
        f"{args.in_workers} environments in workers, normalized: {np.median(shares):.2f} × the "
        "throughput without wrappers."
    )
    text = with_notes(
        markdown_table(["wrapper", "µs per vector step", "xuance_envs / wrapper"], rows), [note]
    )
    print(f"\n{args.num_envs} × {args.env}: observations and rewards normalized\n\n{text}")
    finish(args, __doc__, run, text, results=found, share_left=shares)


if __name__ == "__main__":
    main()
