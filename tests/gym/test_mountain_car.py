from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from xuance_envs.gym.gym_env import LazyFrames, MountainCar


class Reusing(gymnasium.Env):
    """Observes how often it was stepped, always in the same array."""

    def __init__(self, space):
        self.observation_space = space
        self.action_space = Discrete(2)
        self.observation = np.zeros(space.shape, space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation[...] = 0
        return self.observation, {}

    def step(self, action):
        self.observation += 1
        return self.observation, 0.0, False, False, {}


@pytest.fixture
def make():
    """Make a MountainCar over an environment with the observation space given."""

    def make(space):
        gymnasium.register("Reusing-v0", Reusing, disable_env_checker=True, kwargs={"space": space})
        return MountainCar("Reusing-v0")

    yield make
    gymnasium.registry.pop("Reusing-v0", None)


def test_observation_is_the_last_four():
    env, plain = MountainCar(seed=3), gymnasium.make("MountainCar-v0")
    env.action_space.seed(0)
    for seed in (3, None):
        observation, info = env.reset()
        first, _ = plain.reset(seed=seed)
        last_four = [first] * 4
        assert info == {"episode_step": 0}
        for step in range(1, 12):
            assert isinstance(observation, LazyFrames)
            assert (observation.shape, observation.dtype) == ((8,), np.float32)
            np.testing.assert_array_equal(observation, np.concatenate(last_four))
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            newest, *expected, _ = plain.step(action)
            last_four = [*last_four[1:], newest]
            assert [reward, terminated, truncated] == expected
            assert info == {"episode_step": step, "episode_score": -1.0 * step}


def test_space_repeats_the_bounds_of_the_environment():
    env = MountainCar()
    space = env.unwrapped.observation_space
    assert env.observation_space == Box(
        np.tile(space.low, 4), np.tile(space.high, 4), dtype=np.float32
    )
    for _ in range(5):
        assert np.asarray(env.reset()[0]) in env.observation_space
    assert env.max_episode_steps == 200


def test_observations_stay_as_they_were_when_the_environment_reuses_its_array(make):
    env = make(Box(-np.inf, np.inf, (2,), np.float32))
    observations = [env.reset()[0], *(env.step(0)[0] for _ in range(6))]
    env.reset()
    for step, observation in enumerate(observations):
        expected = np.repeat(np.maximum(np.arange(step - 3, step + 1), 0), 2)
        np.testing.assert_array_equal(observation, expected)


def test_consecutive_observations_share_frames():
    env = MountainCar(seed=0)
    first, _ = env.reset()
    second = env.step(0)[0]
    assert [id(frame) for frame in first._frames[1:]] == [id(frame) for frame in second._frames[:3]]


def test_images_are_stacked_along_the_last_axis(make):
    env = make(Box(0, 255, (5, 4, 3), np.uint8))
    assert env.observation_space == Box(0, 255, (5, 4, 12), np.uint8)
    env.reset()
    observation = env.step(0)[0]
    np.testing.assert_array_equal(np.asarray(observation)[0, 0], [0] * 9 + [1] * 3)


@pytest.mark.parametrize("observation", [[300, 1], [0.5, 1], [np.nan, 1], [1, 2, 3]], ids=str)
def test_observations_that_do_not_fit_are_refused(make, observation):
    env = make(Box(0, 255, (2,), np.uint8))
    env.reset()
    env.unwrapped.observation = np.array(observation)
    with pytest.raises(ValueError, match=r"expected (values that fit dtype uint8|shape \(2,\))"):
        env.step(0)


@pytest.mark.parametrize("space", [Discrete(3), Box(0, 1, ())], ids=["Discrete", "scalar"])
def test_observations_that_cannot_be_stacked_are_refused(make, space):
    with pytest.raises(ValueError, match="expected an environment whose observations are arrays"):
        make(space)


def test_render_mode_and_seed_are_passed_on():
    env = MountainCar("MountainCar-v0", 4, "rgb_array")
    assert env.render_mode == "rgb_array"
    plain = gymnasium.make("MountainCar-v0")
    np.testing.assert_array_equal(np.asarray(env.reset()[0])[:2], plain.reset(seed=4)[0])
    env.close()
