"""Environments that take liberties, in our vector environments and in Gymnasium's own."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import operations
import pytest
from example_envs import Wrapped
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from operations import LockstepPair, operation
from play_envs import PlayEnv
from unusual_envs import GymnasiumModelEnv, SelfReplacingEnv, TakingEnv

from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv

# Gymnasium says what raised.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Quick = partial(AsyncVectorEnv, context="forkserver")
IN_PROCESSES = {"async": Quick, "async-caller": partial(Quick, caller_steps=True)}
KINDS = {"sync": SyncVectorEnv, **IN_PROCESSES}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
in_processes = pytest.mark.parametrize("kind", IN_PROCESSES.values(), ids=IN_PROCESSES)
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


@kinds
def test_options_are_each_environments_own(closing, kind):
    envs = closing(kind([TakingEnv] * 4))
    options = {"level": 7, "items": [1, 2]}
    assert envs.reset(options=options)[0].tolist() == [[9]] * 4
    with_mask = {**options, "reset_mask": np.array([True, False, True, True])}
    assert envs.reset(options=with_mask)[0].tolist() == [[9]] * 4
    assert options == {"level": 7, "items": [1, 2]}
    assert set(with_mask) == {*options, "reset_mask"}


@in_processes
def test_arguments_of_calls_and_values_are_each_environments_own(closing, kind):
    envs = closing(kind([TakingEnv] * 4))
    items, more, value = [1], {"a": 1}, {"a": 1}
    assert envs.call("take", items, more=more) == ((1, 1),) * 4
    for values in (value, [value] * 4):
        envs.set_attr("taken", values)
        assert envs.get_attr("taken") == ({"a": 1, "times": 1},) * 4
    assert (items, more, value) == ([1], {"a": 1}, {"a": 1})


def test_of_the_serial_one_they_are_the_callers_as_of_gymnasiums(closing):
    for kind in (SyncVectorEnv, gymnasium.vector.SyncVectorEnv):
        envs = closing(kind([TakingEnv] * 4))
        value = {"a": 1}
        envs.set_attr("held", value)
        assert envs.call("is_held", value) == (True,) * 4
        assert envs.get_attr("held")[0] is value


def assert_alike(kind, env_fn, mode, steps):
    made = [of([env_fn] * 4, autoreset_mode=mode) for of in (gymnasium.vector.SyncVectorEnv, kind)]
    with operations.closing(LockstepPair(*reversed(made))) as beside:
        for done in steps:
            beside.do(done)


@kinds
@modes
def test_a_method_that_an_environment_replaces_itself_is_the_one_that_is_called(kind, mode):
    step, reset = operation("step", np.zeros(4, int)), operation("reset", seed=1)
    every_third = mode is AutoresetMode.DISABLED
    steps = [reset, *[step, step, step, reset if every_third else step] * 4, reset, step]
    assert_alike(kind, SelfReplacingEnv, mode, steps)


@kinds
@pytest.mark.parametrize("space", [spaces.Tuple([]), spaces.Dict()], ids=str)
def test_observations_without_parts_are_as_gymnasiums(kind, space):
    env_fn = partial(PlayEnv, 0, space, spaces.Discrete(2))
    step, reset = operation("step", np.zeros(4, int)), operation("reset", seed=1)
    assert_alike(kind, env_fn, AutoresetMode.SAME_STEP, [reset, *[step] * 5])


@kinds
@pytest.mark.parametrize("env_fn", [GymnasiumModelEnv, lambda: Wrapped(GymnasiumModelEnv())])
def test_an_attribute_named_env_is_not_taken_for_an_environment(kind, env_fn):
    steps = [
        operation("get_attr", "rate"),
        operation("call", "describe"),
        operation("set_attr", "level", [5, 6, 7, 8]),
        operation("get_attr", "level"),
        operation("call", "simulated"),
        operation("reset"),
        operation("step", np.zeros(4, int)),
    ]
    assert_alike(kind, env_fn, AutoresetMode.NEXT_STEP, steps)
