"""The contract: values of any space come out of it as they went in, whatever it is nested in."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from any_space import any_space, array_space, samples
from backends import BACKENDS, DUMMY, Maker
from comparing import (
    HandSteps,
    assert_same,
    assert_same_reset,
    assert_same_step,
    batch_of,
)
from example_envs import PLAIN, CustomSpace, EchoEnv
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW, MANY = 5, 60
"""How many spaces are tried: starting processes takes longer than anything else here."""

TRIED = pytest.mark.parametrize(
    ("backend", "tries"),
    [(backend, MANY if backend is DUMMY else FEW) for backend in BACKENDS],
    ids=str,
)

seeds = st.integers(0, 1000)


def try_spaces(tries, *strategies):
    """Runs a check on so many examples."""
    return lambda check: settings(
        max_examples=tries, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )(given(*strategies)(check))


@TRIED
@pytest.mark.parametrize(
    ("shown", "copy"), [(any_space, True), (array_space, False)], ids=["copies", "views"]
)
def test_what_environments_show_arrives_as_it_is(backend, tries, shown, copy):
    @try_spaces(tries, shown, seeds)
    def check(space, seed):
        with Maker(backend)([partial(EchoEnv, space, length=2)] * 3, copy=copy) as envs:
            by_hand = [HandSteps(EchoEnv(space, length=2), seed + i) for i in range(3)]
            assert_same_reset(space, envs.reset(seed=seed), by_hand)
            for _ in range(3):
                expected = [hand.step(np.int64(0)) for hand in by_hand]
                assert_same_step(space, envs.step([0] * 3), expected)

    check()


@TRIED
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "list"])
def test_what_the_caller_sends_arrives_as_it_is(backend, tries, batched):
    @try_spaces(tries, any_space, seeds)
    def check(space, seed):
        with Maker(backend)([partial(EchoEnv, PLAIN, space)] * 3) as envs:
            envs.reset(seed=0)
            sent = [samples(space, 3, seed + step) for step in range(2)]
            for actions in sent:
                copied = copy.deepcopy(actions)
                envs.step(batch_of(space, copied) if batched else copied)
            for i, received in enumerate(envs.get_attr("received")):
                expected = [as_received(space, actions[i]) for actions in sent]
                assert_same(received, expected, f"environment {i}")

    check()


def as_received(space, value):
    """The action, with an array where Gymnasium samples a scalar for a Box of no dimensions."""
    if isinstance(space, spaces.Dict):
        return {key: as_received(inner, value[key]) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_received(inner, part) for inner, part in zip(space, value, strict=True))
    return np.asarray(value) if isinstance(space, spaces.Box) else value


@TRIED
def test_one_environment_alone_takes_a_bare_action_of_any_space(backend, tries):
    @try_spaces(tries, array_space, seeds)
    def check(space, seed):
        with Maker(backend)([partial(EchoEnv, PLAIN, space)]) as envs:
            envs.reset(seed=0)
            [action] = samples(space, 1, seed)
            envs.step(copy.deepcopy(action))
            envs.step([copy.deepcopy(action)])
            envs.step(batch_of(space, [copy.deepcopy(action)]))
            expected = as_received(space, action)
            assert_same(envs.get_attr("received")[0], [expected] * 3)

    check()


EMPTY = [
    spaces.Dict({}),
    spaces.Tuple(()),
    spaces.Dict(a=spaces.Dict({}), b=spaces.Discrete(2)),
    spaces.Box(0, 1, (0,)),
    spaces.Box(0, 1, (3, 0)),
]


@pytest.mark.parametrize("space", EMPTY, ids=str)
def test_a_space_may_be_empty(make, space):
    envs = make([partial(EchoEnv, space, space, length=1)] * 5)
    by_hand = [HandSteps(EchoEnv(space, space, length=1), i) for i in range(5)]
    assert_same_reset(space, envs.reset(seed=0), by_hand)
    actions = samples(space, 5, 0)
    expected = [hand.step(action) for hand, action in zip(by_hand, actions, strict=True)]
    assert_same_step(space, envs.step(actions), expected)
    assert_same(list(envs.get_attr("received")), [[as_received(space, a)] for a in actions])


def test_a_space_gymnasium_does_not_know_is_held_as_objects(make_on_all):
    space = CustomSpace()
    envs = make_on_all([partial(EchoEnv, space, space, length=2)] * 5)
    by_hand = [HandSteps(EchoEnv(space, space, length=2), i) for i in range(5)]
    assert_same_reset(space, envs.reset(seed=0), by_hand)
    for _ in range(3):
        expected = [hand.step("xx") for hand in by_hand]
        assert_same_step(space, envs.step(["xx"] * 5), expected)
    assert envs.get_attr("received")[4] == ["xx"] * 3


@pytest.mark.everywhere
@pytest.mark.spawned
def test_every_kind_of_space_may_be_spawned(make_on_all):
    space = spaces.Dict(
        box=spaces.Box(-1, 1, (2, 2), np.float16),
        bits=spaces.Box(0, 1, (3,), np.bool_),
        inner=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([[2, 3], [4, 5]]))),
        graph=spaces.Graph(PLAIN, spaces.Discrete(2)),
        sequence=spaces.Sequence(spaces.Text(3)),
        either=spaces.OneOf((spaces.Discrete(2), PLAIN)),
    )
    envs = make_on_all([partial(EchoEnv, space, space, length=2)] * 5)
    by_hand = [HandSteps(EchoEnv(space, space, length=2), i) for i in range(5)]
    assert_same_reset(space, envs.reset(seed=0), by_hand)
    for step in range(3):
        actions = samples(space, 5, step)
        expected = [hand.step(action) for hand, action in zip(by_hand, actions, strict=True)]
        assert_same_step(space, envs.step(actions), expected)


@pytest.mark.everywhere
def test_episodes_of_objects_may_end_one_after_the_other(make):
    words = spaces.Text(4)
    env_fns = [partial(EchoEnv, words, length=2 + i) for i in range(5)]
    envs = make(env_fns)
    hands = [HandSteps(env_fn(), i) for i, env_fn in enumerate(env_fns)]
    envs.reset(seed=0)
    for _ in range(8):
        assert_same_step(words, envs.step([0] * 5), [hand.step(0) for hand in hands])


@pytest.mark.everywhere
def test_some_environments_of_objects_may_be_reset_before_the_others(make):
    words = spaces.Text(4)
    envs = make([partial(EchoEnv, words)] * 5)
    obs, _ = envs.reset(seed=0, env_ids=[1])
    assert obs == (HandSteps(EchoEnv(words), 1).first[0],)
