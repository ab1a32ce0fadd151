"""Environments as people write them: saved and loaded at many points, in all backends."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from corpus_envs import ENVS

from xuance_envs import DummyVecEnv, StateError, SubprocVecEnv, VecEnv, check_saving
from xuance_envs.state.checkpointer import EnvCheckpointer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

POINTS = 0, 1, 17, 23  # 23: right after an end

if sys.version_info >= (3, 14):  # Python no longer pickles iterators of itertools
    REFUSED = {name: ENVS.pop(name) for name in ("Iterators", "Routing")}

    @pytest.mark.parametrize("name", REFUSED)
    def test_iterators_of_itertools_are_refused(name: str) -> None:
        with DummyVecEnv([REFUSED[name]]) as envs:
            envs.reset(seed=1)
            with pytest.raises(StateError, match=r"a itertools\.(count|cycle) cannot be saved"):
                envs.save_state()


def played(env: Any, steps: int, seed: int = 0) -> list[Any]:
    """Return what steps and resets return, with random actions."""
    env.action_space.seed(seed)
    seen: list[Any] = []
    for _ in range(steps):
        result = env.step(env.action_space.sample())
        seen.append(result[:4])
        if result[2] or result[3]:
            seen.append(env.reset())
    return seen


def assert_goes_on(name: str, point: int, steps: int) -> None:
    env, twin = ENVS[name](), ENVS[name]()
    env.reset(seed=1)
    twin.reset(seed=2)
    played(env, point)
    played(twin, 5, seed=3)
    source, target = EnvCheckpointer(env), EnvCheckpointer(twin)
    for seed in (4, 5):  # the second time right after a load
        target.prepare(source.save(), trusted=True).apply()
        assert source.plan.first_difference(target.plan) is None
        source, target, env, twin = target, source, twin, env
        target.prepare(source.save(), trusted=True).apply()
        assert_same(played(env, steps, seed), played(twin, steps, seed))
    env.close()
    twin.close()


@pytest.mark.parametrize("name", ENVS)
def test_it_goes_on(name: str) -> None:
    assert_goes_on(name, 17, 30)


@pytest.mark.long
@pytest.mark.parametrize("name", ENVS)
def test_it_goes_on_from_any_point(name: str) -> None:
    for point in POINTS:
        assert_goes_on(name, point, 200)
    check_saving(ENVS[name])


def backends(name: str) -> list[VecEnv]:
    return [
        DummyVecEnv([ENVS[name]] * 3),
        SubprocVecEnv([ENVS[name]] * 3, in_series=2, context="forkserver"),
        SubprocVecEnv([ENVS[name]] * 3, in_series=2, context="spawn", caller_steps=True),
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", ENVS)
def test_it_goes_on_in_every_backend(name: str) -> None:
    made = backends(name)
    try:
        for one, other in itertools.permutations(made, 2):
            one.reset(seed=1)
            other.reset(seed=9)
            one.action_space.seed(0)
            actions = [[one.action_space.sample() for _ in range(3)] for _ in range(45)]
            for each in actions[:7]:
                one.step(each)
            state = one.save_state()
            expected = [one.step(each)[:4] for each in actions]
            other.step(actions[0])
            other.load_state(state)
            for each, result in zip(actions, expected, strict=True):
                assert_same(other.step(each)[:4], result)
            other.clone_state(0, range(3))
            rewards = np.asarray(other.step([actions[0][0]] * 3)[1])
            assert (rewards == rewards[0]).all()
    finally:
        for each in made:
            each.close()
