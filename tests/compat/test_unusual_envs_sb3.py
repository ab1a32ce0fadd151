"""Environments that take liberties, in our vector environments and in Stable-Baselines3's own."""

from __future__ import annotations

from functools import partial

import numpy as np
import operations
import pytest
from example_envs import Wrapped
from operations import operation
from unusual_envs import GymnasiumModelEnv, SelfReplacingEnv, TakingEnv

theirs = pytest.importorskip("stable_baselines3.common.vec_env")

from xuance_envs.compat.sb3 import DummyVecEnv, SubprocVecEnv  # needs it

pytestmark = pytest.mark.filterwarnings("ignore:context='fork' copies this process")

# Workers that were not forked would import torch, for shimmy's sake.
Fork = partial(SubprocVecEnv, start_method="fork")
SUBPROC = {"subproc": Fork, "subproc-caller": partial(Fork, caller_steps=True)}
KINDS = {"dummy": DummyVecEnv, **SUBPROC}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
in_processes = pytest.mark.parametrize("kind", SUBPROC.values(), ids=SUBPROC)


@kinds
def test_options_are_each_environments_own(closing, kind):
    envs = closing(kind([TakingEnv] * 4))
    options = {"level": 7, "items": [1, 2]}
    for given in (options, [options] * 4):
        envs.set_options(given)
        assert envs.reset().tolist() == [[9]] * 4
    assert options == {"level": 7, "items": [1, 2]}


@in_processes
def test_arguments_of_methods_and_values_are_each_environments_own(closing, kind):
    envs = closing(kind([TakingEnv] * 4))
    items, more, value = [1], {"a": 1}, {"a": 1}
    assert envs.env_method("take", items, more=more) == [(1, 1)] * 4
    envs.set_attr("taken", value)
    assert envs.get_attr("taken") == [{"a": 1, "times": 1}] * 4
    assert (items, more, value) == ([1], {"a": 1}, {"a": 1})


def test_of_the_serial_one_they_are_the_callers_as_of_theirs(closing):
    for kind in (DummyVecEnv, theirs.DummyVecEnv):
        envs = closing(kind([TakingEnv] * 4))
        value = {"a": 1}
        envs.set_attr("held", value)
        assert envs.env_method("is_held", value) == [True] * 4


class LockstepPair(operations.LockstepPair):
    def plain(self, value):
        if not isinstance(value, tuple):
            return value
        observations, rewards, dones, infos = value
        return observations, rewards.astype(np.float64), dones, list(infos)


def assert_alike(kind, env_fn, steps):
    with operations.closing(
        LockstepPair(kind([env_fn] * 4), theirs.DummyVecEnv([env_fn] * 4))
    ) as beside:
        for done in steps:
            beside.do(done)


@kinds
def test_a_method_that_an_environment_replaces_itself_is_the_one_that_is_called(kind):
    step, reset = operation("step", np.zeros(4, int)), operation("reset")
    assert_alike(kind, SelfReplacingEnv, [reset, *[step] * 10, reset, step])


@kinds
@pytest.mark.parametrize("env_fn", [GymnasiumModelEnv, lambda: Wrapped(GymnasiumModelEnv())])
def test_an_attribute_named_env_is_not_taken_for_an_environment(kind, env_fn):
    steps = [
        operation("get_attr", "rate"),
        operation("has_attr", "rate"),
        operation("env_method", "describe"),
        operation("set_attr", "level", 5),
        operation("get_attr", "level"),
        operation("env_method", "simulated"),
        operation("env_is_wrapped", Wrapped),
        operation("reset"),
        operation("step", np.zeros(4, int)),
    ]
    assert_alike(kind, env_fn, steps)
