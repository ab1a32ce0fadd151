"""The contract for environments that take liberties: with what they are given, and with names."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from backends import QUICK_START, WORKERS, Backend
from comparing import HandSteps, assert_same_reset, assert_same_step
from example_envs import Wrapped
from unusual_envs import (
    GymnasiumModelEnv,
    ModelEnv,
    ProductionEnv,
    SelfReplacingEnv,
    TakingEnv,
)

from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

QUICK = {"context": QUICK_START}
SPLITS = [
    Backend("a worker each", WORKERS.kind, {**QUICK, "in_series": 1}),
    Backend("one worker", WORKERS.kind, {**QUICK, "in_series": 9}),
]

# --- what they are given is their own -------------------------------------------------------------


def check_options(envs):
    options = {"level": 7, "items": [1, 2]}
    assert envs.reset(options=options)[0].tolist() == [[9]] * 5
    assert envs.reset(options=options, env_ids=[3, 1])[0].tolist() == [[9]] * 2
    envs.async_reset(options=options)
    assert envs.recv(5).obs.tolist() == [[9]] * 5
    assert options == {"level": 7, "items": [1, 2]}
    envs.async_reset(options=options)
    options["items"].clear()  # before the reset is waited for
    assert envs.recv(5).obs.tolist() == [[9]] * 5


def check_arguments(envs):
    items, more = [1], {"a": 1}
    for _ in range(2):
        found = envs.call("take", items, more=more)
        assert list(map(tuple, found)) == [(1, 1)] * 5
    assert (items, more) == ([1], {"a": 1})


def check_values(envs):
    value = {"a": 1}
    for values in (value, [value] * 5):
        envs.set_attr("taken", values)
        assert envs.get_attr("taken") == ({"a": 1, "times": 1},) * 5
    assert value == {"a": 1}


def check_actions(envs):
    envs.reset()
    actions = np.zeros((5, 2))
    for given in (actions, list(actions)):
        assert envs.step(given)[0].tolist() == [[0]] * 5
    assert not actions.any()


GIVEN = {
    "options": check_options,
    "arguments": check_arguments,
    "values": check_values,
    "actions": check_actions,
}
given = pytest.mark.parametrize("check", GIVEN.values(), ids=GIVEN)
splits = pytest.mark.parametrize("backend", SPLITS, ids=str)


@pytest.mark.everywhere("options")
@given
def test_what_is_given_to_an_environment_is_its_own(make, check):
    check(make([TakingEnv] * 5))


@given
@splits
def test_it_is_however_environments_are_split(backend, check):
    with backend.kind([TakingEnv] * 5, **backend.options) as envs:
        check(envs)


def test_what_cannot_be_copied_is_given_as_it_is_in_this_process():
    with DummyVecEnv([TakingEnv] * 2) as envs:
        lock = threading.Lock()
        assert envs.reset(options={"lock": lock, "level": 7, "items": []})[0][0].tolist() == [7]
        envs.set_attr("held", lock)
        assert envs.call("is_held", lock) == (True, True)


# --- their methods are those they have now --------------------------------------------------------


def check_replaced(envs):
    space = envs.observation_space
    hands = [HandSteps(SelfReplacingEnv()) for _ in range(5)]
    assert_same_reset(space, envs.reset(), hands)
    for _ in range(10):
        assert_same_step(space, envs.step([0] * 5), [hand.step(0) for hand in hands])
    envs.reset(env_ids=[1])
    assert envs.step([0] * 5)[1].tolist() == [2, 1, 2, 2, 2]


def test_a_method_that_an_environment_replaces_itself_is_the_one_that_is_called(make):
    check_replaced(make([SelfReplacingEnv] * 5))


@splits
def test_it_is_called_however_environments_are_split(backend):
    with backend.kind([SelfReplacingEnv] * 5, **backend.options) as envs:
        check_replaced(envs)


def test_it_is_called_within_wrappers_too(make):
    check_replaced(make([lambda: Wrapped(SelfReplacingEnv())] * 5))


# --- their attributes are only that ---------------------------------------------------------------

MODELS = {
    "a simulation": ModelEnv,
    "a word": ProductionEnv,
    "of Gymnasium's": GymnasiumModelEnv,
    "wrapped": lambda: Wrapped(GymnasiumModelEnv()),
}
models = pytest.mark.parametrize("make_env", MODELS.values(), ids=MODELS)


@models
@pytest.mark.parametrize("name", ["rate", "describe", "upper"])
def test_only_environments_are_reached_through_an_attribute_named_env(make, make_env, name):
    envs = make([make_env] * 3)
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        envs.get_attr(name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        envs.call(name)


@pytest.mark.parametrize("value", [None, 3], ids=repr)
def test_an_attribute_named_env_without_a_step_is_no_environment(make, value):
    envs = make([ProductionEnv] * 3)
    envs.set_attr("env", value)
    with pytest.raises(AttributeError, match="no attribute 'real'"):
        envs.get_attr("real")


@models
def test_an_attribute_is_set_on_the_environment_and_not_on_what_it_names_env(make, make_env):
    envs = make([make_env] * 3)
    envs.set_attr("rate", 5)
    envs.set_attr("level", [6, 7, 8])
    assert envs.get_attr("rate") == (5,) * 3
    assert envs.get_attr("level") == (6, 7, 8)
    if make_env is not ProductionEnv:
        assert list(map(tuple, envs.call("simulated"))) == [(1, 2)] * 3


def test_attributes_of_these_names_are_read_and_set_like_others(make):
    envs = make([ProductionEnv] * 3)
    before = {"env": "production", "unwrapped": "raw", "spec": "steel", "close": "evening"}
    for name, value in before.items():
        assert envs.get_attr(name) == (value,) * 3
        envs.set_attr(name, ["a", "b", "c"])
        assert envs.get_attr(name) == ("a", "b", "c")


def test_environments_with_such_attributes_are_stepped_and_closed(make, caplog):
    envs = make([partial(ModelEnv)] * 3)
    assert envs.max_episode_steps == 1000
    envs.reset()
    assert envs.step([0] * 3)[1].tolist() == [1] * 3
    envs.close()
    assert envs.closed
    assert not caplog.records
