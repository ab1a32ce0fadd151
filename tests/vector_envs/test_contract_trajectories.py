"""The contract: trajectories are, bit for bit, those of the same environments stepped by hand."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import QUICK_START
from comparing import HandStep, HandSteps, assert_same_reset, assert_same_step
from example_envs import TAXI, EchoEnv
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

NESTED = spaces.Dict(
    camera=spaces.Box(0, 255, (4, 4, 3), np.uint8),
    joints=spaces.Tuple((spaces.Box(-1, 1, (), np.float64), spaces.MultiDiscrete([3, 4]))),
    name=spaces.Text(6),
)


PLAIN_ECHO = partial(EchoEnv, spaces.Box(-1, 1, (2,)), length=5)

MAKERS = {
    "CartPole": partial(gymnasium.make, "CartPole-v1"),
    "CartPole of XuanCe": partial(Gym_Env, "CartPole-v1"),
    "Pendulum": partial(gymnasium.make, "Pendulum-v1", max_episode_steps=20),
    "Taxi": partial(gymnasium.make, TAXI, max_episode_steps=20),
    "Blackjack": partial(gymnasium.make, "Blackjack-v1"),
    "FrozenLake": partial(gymnasium.make, "FrozenLake-v1"),
    "nested": partial(EchoEnv, NESTED, spaces.Box(-1, 1, (2,)), length=3),
}


STEPS = 120
"""How many a trajectory has, of each of five environments."""


@dataclass
class ByHand:
    """A trajectory of five environments stepped by hand, and the actions it took."""

    starts: list[HandSteps]
    actions: list[list[Any]]
    steps: list[list[HandStep]]


@cache
def by_hand(name):
    """The trajectory from seeds 100 to 104, with random actions."""
    starts = [HandSteps(MAKERS[name](), seed=100 + i) for i in range(5)]
    space = starts[0].env.action_space
    space.seed(0)
    actions = [[space.sample() for _ in starts] for _ in range(STEPS)]
    steps = [
        [start.step(action) for start, action in zip(starts, each, strict=True)] for each in actions
    ]
    ends = sum(step.ended for each in steps for step in each)
    assert ends > 20, "too few ends of episodes to say anything"
    return ByHand(starts, actions, steps)


def check_against_hand(envs, name, count=STEPS):
    """Steps a vector environment with the actions of the trajectory stepped by hand."""
    expected, space = by_hand(name), envs.observation_space
    assert_same_reset(space, envs.reset(seed=100), expected.starts)
    for actions, steps in zip(expected.actions[:count], expected.steps[:count], strict=True):
        assert_same_step(space, envs.step(actions), steps)


@pytest.mark.everywhere("CartPole of XuanCe", "nested")
@pytest.mark.spawned("nested")
@pytest.mark.parametrize("name", MAKERS)
def test_trajectories_are_those_of_stepping_by_hand(make_on_all, name):
    check_against_hand(make_on_all([MAKERS[name]] * 5), name)


@pytest.mark.parametrize("caller_steps", [False, True], ids=["workers", "caller-steps"])
@pytest.mark.parametrize("in_series", [1, 3, 4, 5, 9, "auto"])
def test_no_split_changes_a_trajectory(in_series, caller_steps):
    name = "CartPole of XuanCe"
    options = {"context": QUICK_START, "in_series": in_series, "caller_steps": caller_steps}
    with SubprocVecEnv([MAKERS[name]] * 5, **options) as envs:
        check_against_hand(envs, name, 60)


def test_forked_workers_give_the_same_trajectories():
    with SubprocVecEnv([MAKERS["nested"]] * 5, in_series=2, context="fork") as envs:
        check_against_hand(envs, "nested", 60)


@pytest.mark.everywhere
def test_a_seed_given_again_gives_the_same_trajectory_again(make):
    envs = make([MAKERS["nested"]] * 5)
    check_against_hand(envs, "nested", 20)
    check_against_hand(envs, "nested", 20)


@pytest.mark.everywhere
def test_resets_without_a_seed_continue_the_random_stream(make):
    make_env = partial(EchoEnv, NESTED, length=100)
    envs = make([make_env] * 5)
    hands = [HandSteps(make_env(), seed=i) for i in range(5)]
    assert_same_reset(NESTED, envs.reset(seed=0), hands)
    for _ in range(3):
        envs.step([0] * 5)
        for hand in hands:
            hand.step(np.int64(0))
            hand.first = hand.env.reset()
        assert_same_reset(NESTED, envs.reset(), hands)


def test_environments_seeded_apart_differ(make):
    envs = make([MAKERS["Pendulum"]] * 5)
    obs, _ = envs.reset(seed=0)
    assert len({row.tobytes() for row in obs}) == 5


def test_environments_not_seeded_differ(make):
    envs = make([MAKERS["Pendulum"]] * 5)
    obs, _ = envs.reset()
    assert len({row.tobytes() for row in obs}) == 5


def test_the_callers_global_generators_are_not_touched(make):
    before = random.getstate(), np.random.get_state()[1].tobytes()
    envs = make([MAKERS["nested"]] * 5, env_seed=None)
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(np.zeros((5, 2)))
    envs.close()
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


def check_spaces_are_the_callers(envs):
    """Uses the spaces between steps of environments that draw from their own."""
    hands = [HandSteps(PLAIN_ECHO(), seed=i) for i in range(envs.num_envs)]
    space = copy.deepcopy(envs.observation_space)
    envs.reset(seed=0)
    for _ in range(12):
        envs.observation_space.seed(7)
        envs.observation_space.sample()
        assert_same_step(space, envs.step([0] * 5), [hand.step(np.int64(0)) for hand in hands])


def test_sampling_and_seeding_the_spaces_does_not_touch_the_environments(make):
    check_spaces_are_the_callers(make([PLAIN_ECHO] * 5))


def test_nor_does_it_where_the_caller_steps_all_environments():
    with SubprocVecEnv([PLAIN_ECHO] * 5, in_series=5, caller_steps=True) as envs:
        check_spaces_are_the_callers(envs)


def test_a_time_limit_outside_the_environment_truncates(make):
    envs = make([lambda: TimeLimit(EchoEnv(NESTED, length=99), 4)] * 5)
    envs.reset(seed=0)
    for step in range(1, 10):
        _, _, terminated, truncated, _ = envs.step([0] * 5)
        assert not terminated.any()
        assert truncated.all() == truncated.any() == (step % 4 == 0)
