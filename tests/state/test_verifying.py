"""``save_state(verify=True)``: new environments are saved, loaded and compared first."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from stateful_envs import Collector

from xuance_envs import ClipRewards, DummyVecEnv, Gym_Env, StateError, SubprocVecEnv

TAKEN = itertools.count()


class Numbered(gymnasium.Env[Any, Any]):
    """Takes numbers from its module, and shows them later; refuses some actions."""

    observation_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = spaces.Discrete(4)

    def __init__(self, exact: bool, path: str = "", limit: int = 99) -> None:
        self.exact = exact
        self.held = {"numbers": [0.0, 0.0]}
        self.steps = 0
        if path:
            with open(path, "a") as file:
                file.write(".")
            if os.path.getsize(path) > limit:
                raise OSError("the port is in use")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def action_masks(self) -> Any:
        return np.arange(4) == self.steps % 3

    def step(self, action: Any) -> Any:
        assert action == self.steps % 3, "masked"
        self.steps += 1
        if self.steps == 36 and not self.exact:
            self.held["numbers"][1] = float(next(TAKEN))
        shown = self.held["numbers"][1] if self.steps == 40 else 0.0
        return np.full(1, shown), 0.0, False, False, {}


def workers(fns: list[Any]) -> SubprocVecEnv:
    return SubprocVecEnv(fns, in_series=2, context="forkserver")


@pytest.mark.parametrize("make", [DummyVecEnv, workers])
def test_a_divergence_names_the_attribute(make: Any) -> None:
    fns = [lambda: Numbered(True)] * 2 + [lambda: Numbered(False)] * 2
    with make(fns) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError) as caught:
            envs.save_state(verify=True)
        assert caught.value.env_index == 2
        assert "in step 8 after saving, the observation differs" in caught.value.reason
        assert "first attribute that differs after 4 steps is" in caught.value.reason
        assert "['numbers'][1]" in caught.value.reason
        assert len(envs.save_state()) == len(fns)  # it stays usable
        envs.step([0] * len(fns))


@pytest.mark.parametrize("make", [DummyVecEnv, workers])
def test_the_users_environments_are_left_alone(make: Any) -> None:
    fns = [Collector, Collector, lambda: Gym_Env("CartPole-v1"), lambda: Gym_Env("CartPole-v1")]
    for some in (fns[:2], fns[2:]):
        with make(some) as envs, DummyVecEnv(some) as reference:
            for each in (envs, reference):
                each.reset(seed=1)
                each.step([1, 0])
            states = [ClipRewards(envs).save_state(verify=True), reference.save_state()]
            assert [one.env for one in states[0].envs] == [one.env for one in states[1].envs]
            for _ in range(20):
                assert_same(envs.step([1, 0])[:4], reference.step([1, 0])[:4])


@pytest.mark.parametrize("make", [DummyVecEnv, workers])
def test_where_no_others_can_be_made_a_warning_says_so(make: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "made")
    with make([lambda: Numbered(True, path, limit=3)] * 2) as envs:
        envs.reset(seed=1)
        with pytest.warns(RuntimeWarning, match="environment 0 was not verified.*port is in use"):
            state = envs.save_state(verify=True)
        assert len(state) == 2


def test_an_error_of_states_in_their_constructor_is_one_of_these() -> None:
    created = itertools.count()

    def make() -> Numbered:
        if next(created):
            raise StateError(-1, "load", "the file is gone")
        return Numbered(True)

    with DummyVecEnv([make]) as envs:
        envs.reset(seed=1)
        with pytest.warns(RuntimeWarning, match="creating two new .*the file is gone"):
            assert len(envs.save_state(verify=True)) == 1


def test_where_others_fail_a_warning_says_so() -> None:
    class Picky(Numbered):
        action_masks = None  # type: ignore[assignment]

    with DummyVecEnv([lambda: Picky(True)]) as envs:
        envs.reset(seed=1)
        with pytest.warns(RuntimeWarning, match=r"failed with random actions: .*masked"):
            envs.save_state(verify=True)
