"""Our vector environments beside Gymnasium's own: the same, in everything that they return."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from compat_envs import VALUES, InfoEnv
from example_envs import TAXI
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv

IDS = ["CartPole-v1", TAXI, "Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"]

OURS = {
    "sync": SyncVectorEnv,
    "async": partial(AsyncVectorEnv, context="forkserver"),
    "async-caller": partial(AsyncVectorEnv, caller_steps=True, context="forkserver"),
}

ours = pytest.mark.parametrize("kind", OURS.values(), ids=OURS)
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


def assert_equal(got, expected, what):
    assert data_equivalence(got, expected, exact=True), f"{what}: got {got}, expected {expected}"


def assert_alike(envs, own, steps, seed=1):
    """Step one of ours and one of theirs side by side, resetting by hand what is not reset."""
    by_hand = own.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    own.action_space.seed(seed)
    assert_equal(envs.reset(seed=seed), own.reset(seed=seed), "reset")
    for number in range(steps):
        actions = own.action_space.sample()
        got, expected = envs.step(actions), own.step(actions)
        assert_equal(got, expected, f"step {number}")
        ended = expected[2] | expected[3]
        if by_hand and ended.any():
            got = envs.reset(options={"reset_mask": ended})
            assert_equal(got, own.reset(options={"reset_mask": ended}), f"reset {number}")


def assert_alike_on(closing, kind, mode, env_fns, steps):
    envs = closing(kind(env_fns, autoreset_mode=mode))
    own = closing(gymnasium.vector.SyncVectorEnv(env_fns, autoreset_mode=mode))
    assert_alike(envs, own, steps)


@ours
@modes
@pytest.mark.parametrize("env_id", IDS)
def test_steps_are_gymnasiums(closing, kind, mode, env_id):
    make = partial(gymnasium.make, env_id, max_episode_steps=30)
    assert_alike_on(closing, kind, mode, [make] * 3, 80)


@pytest.mark.long
@ours
@modes
@pytest.mark.parametrize("env_id", IDS)
def test_thousands_of_steps_are_gymnasiums(closing, kind, mode, env_id):
    assert_alike_on(closing, kind, mode, [partial(gymnasium.make, env_id)] * 3, 3_000)


@ours
@modes
def test_infos_of_every_kind_are_gymnasiums(closing, kind, mode):
    functions = [partial(InfoEnv, number) for number in range(4)]
    envs = closing(kind(functions, autoreset_mode=mode))
    own = closing(gymnasium.vector.SyncVectorEnv(functions, autoreset_mode=mode))
    for info in (None, *range(len(VALUES))):
        for each in (envs, own):
            each.set_attr("kind", info)
        assert_alike(envs, own, 25)


@ours
@modes
def test_infos_that_differ_between_environments_are_gymnasiums(closing, kind, mode):
    functions = [partial(InfoEnv, k, kind=info) for k, info in enumerate([0, 1, 0, 8, 2])]
    assert_alike_on(closing, kind, mode, functions, 40)


@ours
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_resets_by_mask_in_the_middle_of_episodes_are_gymnasiums(closing, kind, mode):
    functions = [partial(InfoEnv, number) for number in range(4)]
    envs = closing(kind(functions, autoreset_mode=mode))
    own = closing(gymnasium.vector.SyncVectorEnv(functions, autoreset_mode=mode))
    assert_equal(envs.reset(seed=3), own.reset(seed=3), "reset")
    rng = np.random.default_rng(0)
    for number in range(80):
        actions = rng.integers(3, size=4)
        assert_equal(envs.step(actions), own.step(actions), f"step {number}")
        mask = rng.random(4) < 0.3
        if mask.any():
            seed = [None, 5, None, number]
            got = envs.reset(seed=seed, options={"reset_mask": mask, "level": number})
            expected = own.reset(seed=seed, options={"reset_mask": mask, "level": number})
            assert_equal(got, expected, f"reset {number}")


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_infos_are_added_by_the_rules_of_a_subclass(closing, kind):
    class Counting(kind):
        added = 0

        def _add_info(self, vector_infos, env_info, env_num):
            self.added += 1
            return super()._add_info(vector_infos, env_info, env_num)

    envs = closing(Counting([partial(gymnasium.make, "CartPole-v1")] * 2))
    envs.reset()
    envs.step([0, 1])
    assert envs.added == 4


@ours
def test_arrays_are_batched_without_a_look_at_single_environments(closing, kind, monkeypatch):
    (arrays,) = [k for k, value in enumerate(VALUES) if "array" in value(0)]
    functions = [partial(InfoEnv, number, kind=arrays) for number in range(3)]
    envs = closing(kind(functions, autoreset_mode=AutoresetMode.SAME_STEP))
    envs.reset()  # has a string in its infos

    def refuse(*_):
        raise AssertionError("an info was added by itself")

    monkeypatch.setattr(gymnasium.vector.VectorEnv, "_add_info", refuse)
    first = envs.step([0] * 3)[4]["array"]
    second = envs.step([0] * 3)[4]["array"]
    assert first.shape == (3, 3)
    assert not np.array_equal(first, second)
    first[:] = 99
    assert second.max() < 99
