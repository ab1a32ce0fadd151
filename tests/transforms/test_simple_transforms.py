"""Transforms that have nothing to remember: of rewards, of actions, and by the user's functions."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from walking import NUM_WALKS, STILL, WALKS, ReferenceWalks, Walk

from xuance_envs import DummyVecEnv, Gym_Env
from xuance_envs.transforms import (
    ClipActions,
    ClipRewards,
    EpisodeStatistics,
    RescaleActions,
    ScaleRewards,
    TransformObservations,
    TransformRewards,
)

CARTPOLE = partial(Gym_Env, "CartPole-v1")
LOW, HIGH = -2.0, 6.0
"""The bounds of a walk's actions."""


def acted(envs):
    """The actions that the environments were given last."""
    return np.array([each[-1] for each in envs.get_attr("actions")])


# --- rewards ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda envs: ClipRewards(envs), lambda r: np.clip(r, -1, 1)),
        (lambda envs: ClipRewards(envs, -2, 0.5), lambda r: np.clip(r, -2, 0.5)),
        (lambda envs: ScaleRewards(envs, -0.3), lambda r: r * -0.3),
        (lambda envs: TransformRewards(envs, np.sign), np.sign),
        (lambda envs: ClipRewards(ScaleRewards(envs, 0.3), 0), lambda r: np.clip(r * 0.3, 0, 1)),
    ],
    ids=["clipped", "clipped so", "scaled", "transformed", "scaled, then clipped"],
)
def test_rewards_are_transformed_exactly_and_the_original_ones_stay(transform, expected):
    walks = ReferenceWalks()
    with transform(DummyVecEnv(WALKS)) as envs:
        walks.reset(1)
        envs.reset(seed=1)
        for _ in range(12):
            told = walks.step()
            rewards = envs.step(STILL)[1]
            assert rewards.dtype == np.float32
            assert envs.exact_rewards.tolist() == expected(told.rewards).tolist()
            assert rewards.tolist() == np.float32(expected(told.rewards)).tolist()
            assert envs.raw_rewards.tolist() == np.float32(told.rewards).tolist()
            assert envs.buf_rews is rewards


def test_an_episode_that_has_just_begun_has_no_reward_to_transform():
    with TransformRewards(DummyVecEnv(WALKS), lambda rewards: rewards + 100) as envs:
        envs.async_reset()
        assert envs.recv(min_envs=NUM_WALKS).rewards.tolist() == [0] * NUM_WALKS
        envs.send(STILL, range(NUM_WALKS))
        assert (envs.recv(min_envs=NUM_WALKS).rewards > 50).all()


@pytest.mark.parametrize("made", [lambda r: r[:2], lambda r: 1.0, lambda r: r.astype(str)])
def test_what_a_function_makes_of_rewards_is_checked(made):
    with TransformRewards(DummyVecEnv(WALKS), made) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="TransformRewards: expected 6 rewards from the func"):
            envs.step(STILL)
        assert not envs.waiting
        envs.reset()


@pytest.mark.parametrize("first_ready", [False, True], ids=["step", "first ready"])
def test_a_function_may_change_its_argument(first_ready):
    def doubled(rewards):
        assert rewards.dtype == np.float64
        rewards *= 2
        return rewards

    with EpisodeStatistics(TransformRewards(DummyVecEnv([partial(Walk, 2)]), doubled)) as envs:
        envs.async_reset(seed=0)
        envs.recv()
        total = 0.0
        for _ in range(2):
            if first_ready:
                envs.send(STILL[:1], [0])
                _, rewards, _, _, infos, _ = envs.recv()
            else:
                _, rewards, _, _, infos = envs.step(STILL[:1])
            assert rewards == pytest.approx(2 * envs.raw_rewards)
            total += envs.raw_rewards[0]
        assert infos[0]["episode"]["r"] == pytest.approx(total)


def test_bounds_and_factors_of_rewards_are_checked():
    with DummyVecEnv(WALKS) as envs:
        with pytest.raises(ValueError, match="ClipRewards: low: expected a number below 1, got 1"):
            ClipRewards(envs, 1, 1)
        with pytest.raises(ValueError, match="ClipRewards: high: expected a number, got None"):
            ClipRewards(envs, high=None)
        for scale in (math.nan, math.inf, None):
            with pytest.raises(ValueError, match=f"scale: expected a finite number, got {scale}"):
                ScaleRewards(envs, scale)


# --- actions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.array, list, lambda rows: [np.array(row) for row in rows]])
def test_actions_are_rescaled_to_the_environments_bounds(form):
    rows = [[-1.0, 1.0], [0.0, 0.5], [1.0, 1.0], [-1.0, -1.0], [0.25, -0.5], [0.0, 0.0]]
    expected = [[-2, 6], [2, 4], [6, 6], [-2, -2], [3, 0], [2, 2]]
    with RescaleActions(DummyVecEnv(WALKS)) as envs:
        assert envs.action_space == spaces.Box(-1, 1, (2,), np.float32)
        envs.reset()
        envs.step(form(rows))
        assert acted(envs).tolist() == expected
        envs.async_reset()
        envs.recv(min_envs=NUM_WALKS)
        envs.send(form(rows[::-1]), np.arange(NUM_WALKS)[::-1])
        envs.recv(min_envs=NUM_WALKS)
        assert acted(envs).tolist() == expected


def test_bounds_become_bounds_whatever_is_rounded():
    bounds = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32) * 0.1
    low, high = bounds.min(0), bounds.max(0)

    class Narrow(Gym_Env):
        def __init__(self):
            super().__init__("Pendulum-v1")
            self.action_space = spaces.Box(low, high)

        def step(self, action):
            self.acted = action
            return super().step(action[:1])

    with RescaleActions(DummyVecEnv([Narrow], check_actions=True), 0.1, 0.7) as envs:
        envs.reset()
        for bound, expected in ((0.1, low), (0.7, high)):
            given = envs.action_space.low if bound == 0.1 else envs.action_space.high
            envs.step(given[np.newaxis])
            assert np.array_equal(envs.get_attr("acted")[0], expected)
        inside = np.random.default_rng(1).uniform(0.1, 0.7, (1, 1000)).astype(np.float32)
        envs.step(inside)


def test_an_action_outside_goes_outside_unless_it_is_clipped_or_checked():
    outside = np.array([[-2.0, 1.5]] * NUM_WALKS)
    with RescaleActions(DummyVecEnv(WALKS)) as envs:
        envs.reset()
        envs.step(outside)
        assert acted(envs).tolist() == [[-6, 8]] * NUM_WALKS
    with ClipActions(RescaleActions(DummyVecEnv(WALKS))) as envs:
        envs.reset()
        envs.step(outside)
        assert acted(envs).tolist() == [[LOW, HIGH]] * NUM_WALKS
    with RescaleActions(DummyVecEnv(WALKS, check_actions=True)) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="the action for environment 0: expected one in"):
            envs.step(outside)
        assert len(envs.step(STILL)[1]) == NUM_WALKS


def test_actions_are_clipped_to_the_environments_bounds():
    with ClipActions(DummyVecEnv(WALKS)) as envs:
        assert envs.action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
        envs.reset()
        envs.step([[-100.0, 100.0], [1.0, 7.0], [-3.0, 2.0], [0, 0], [6, -2], [np.inf, -np.inf]])
        expected = [[-2, 6], [1, 6], [-2, 2], [0, 0], [6, -2], [6, -2]]
        assert acted(envs).tolist() == expected


@pytest.mark.parametrize("transform", [RescaleActions, ClipActions])
@pytest.mark.parametrize("actions", [np.zeros((5, 2)), np.zeros((6, 3)), [[0.0]] * 6, "none"])
def test_actions_that_do_not_fit_are_refused_and_nothing_has_happened(transform, actions):
    with transform(DummyVecEnv(WALKS)) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="actions for 6 environments"):
            envs.step(actions)
        with pytest.raises(ValueError, match="actions for 2 environments"):
            envs.send(np.zeros((3, 2)), [0, 1])
        assert not envs.waiting
        envs.step(STILL)
        assert [len(each) for each in envs.get_attr("actions")] == [1] * NUM_WALKS


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda envs: RescaleActions(ClipActions(envs)), "put ClipActions around RescaleActions"),
        (
            lambda envs: RescaleActions(envs, 1, -1),
            "finite bounds with low < high in float32, got 1 and -1",
        ),
        (lambda envs: RescaleActions(envs, -np.inf), "finite bounds .* in float32, got -inf and 1"),
    ],
)
def test_bounds_that_are_none_are_refused(wrap, expected):
    with DummyVecEnv(WALKS) as envs, pytest.raises(ValueError, match=expected):
        wrap(envs)


@pytest.mark.parametrize("transform", [RescaleActions, ClipActions])
def test_actions_that_are_no_numbers_in_a_box_are_refused(transform):
    expected = "expected actions in a Box of numbers, got Discrete"
    with DummyVecEnv([CARTPOLE]) as envs, pytest.raises(ValueError, match=expected):
        transform(envs)


# --- the user's own -----------------------------------------------------------------------------


def test_observations_are_what_a_function_makes_of_them():
    space = spaces.Dict(
        {
            "sum": spaces.Box(-np.inf, np.inf, (), np.float64),
            "whole": spaces.Box(0, 1000, (3,), int),
        }
    )
    make = lambda obs: {"sum": obs.sum(-1), "whole": np.round(obs).astype(int)}  # noqa: E731
    walks = ReferenceWalks()
    with TransformObservations(DummyVecEnv(WALKS), make, space) as envs:
        assert envs.obs_shape == {"sum": (), "whole": (3,)}
        told = walks.reset(3)
        assert envs.reset(seed=3)[0]["sum"].tolist() == told.obs.sum(-1).tolist()
        for _ in range(12):
            told = walks.step()
            obs, *_, infos = envs.step(STILL)
            assert obs["whole"].tolist() == np.round(told.obs).tolist()
            assert envs.buf_obs["whole"].tolist() == np.round(told.obs).tolist()
            for row, first in zip(told.ended, told.first, strict=True):
                assert infos[row]["reset_obs"]["whole"].tolist() == np.round(first).tolist()
        obs, _ = envs.reset(env_ids=[5, 2])
        assert envs.buf_obs["sum"][[5, 2]].tolist() == obs["sum"].tolist()


def test_what_a_function_makes_of_observations_is_checked_and_the_environments_stay_usable():
    space = spaces.Box(0, 1, (2,), np.float32)
    halves = [lambda obs: obs, lambda obs: obs[:, :2]]
    with TransformObservations(DummyVecEnv(WALKS), lambda obs: halves[0](obs), space) as envs:
        with pytest.raises(ValueError, match=r"observations of 6 environments: expected shape"):
            envs.reset()
        del halves[0]
        assert envs.reset()[0].shape == (6, 2)
        assert envs.step(STILL)[0].shape == (6, 2)


def test_raw_rewards_do_not_change_with_the_callers_array():
    with EpisodeStatistics(DummyVecEnv(WALKS)) as envs:
        envs.reset(seed=1)
        rewards = envs.step(STILL)[1]
        expected = rewards.tolist()
        rewards *= 2
        assert envs.raw_rewards.tolist() == expected
