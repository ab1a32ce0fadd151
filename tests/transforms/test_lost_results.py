"""Results that an error of one transform discards: the others must not miss episode boundaries."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from walking import Walk

from xuance_envs import AlreadySteppingError, DummyVecEnv, EnvError
from xuance_envs.transforms import (
    EpisodeStatistics,
    NormalizeObservations,
    NormalizeRewards,
    ScaleRewards,
    StackObservations,
    TransformObservations,
)

STILL = np.zeros((2, 2), np.float32)
BOTH = [0, 1]


class NanOnce(Walk):
    """A walk with one NaN, in its observation or reward, in the given call."""

    def __init__(self, call: int, in_reward: bool = False) -> None:
        super().__init__(50)
        self.call, self.in_reward, self.calls = call, in_reward, 0

    def seen(self) -> Any:
        self.calls += 1
        spoilt = self.calls == self.call and not self.in_reward
        return super().seen() * (np.nan if spoilt else 1)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        spoilt = self.calls == self.call and self.in_reward
        return obs, np.nan if spoilt else reward, *rest


def both(length: int, call: int, in_reward: bool = False) -> DummyVecEnv:
    return DummyVecEnv([partial(Walk, length), partial(NanOnce, call, in_reward)])


def step(envs: Any, first_ready: bool) -> Any:
    if not first_ready:
        return envs.step(STILL)
    envs.send(STILL, BOTH)
    return envs.recv(min_envs=2)[:5]


def begin(envs: Any, first_ready: bool) -> None:
    if not first_ready:
        envs.reset(seed=0)
        return
    envs.async_reset(seed=0)
    envs.recv(min_envs=2)


@pytest.mark.parametrize("first_ready", [False, True], ids=["step", "first ready"])
def test_an_end_that_was_lost_ends_stacks_and_statistics_around(first_ready):
    inner = NormalizeObservations(both(2, 3), clip=1e9)
    outer = StackObservations(NormalizeRewards(inner, gamma=1.0), 3, keep_raw=True)
    with EpisodeStatistics(outer) as envs:
        begin(envs, first_ready)
        step(envs, first_ready)
        with pytest.raises(EnvError, match="environment 1"):
            step(envs, first_ready)  # ends the episode of environment 0
        if not first_ready:
            envs.reset(env_ids=[1])
        obs, *_ = step(envs, first_ready)
        frames = np.split(obs[0], 3)
        assert frames[0].tolist() == frames[1].tolist() == frames[2].tolist()
        assert outer.vec_env.returns[0] == pytest.approx(envs.raw_rewards[0])
        seen = obs[0, -3:].tolist()
        obs, *_, infos = step(envs, first_ready)
        assert np.split(obs[0], 3)[1].tolist() == seen
        assert infos[0]["episode"]["l"] == 2


def test_an_end_that_was_lost_ends_the_return_of_who_raised():
    with NormalizeRewards(both(2, 3, in_reward=True), gamma=1.0) as envs:
        begin(envs, False)
        envs.step(STILL)
        with pytest.raises(EnvError, match="environment 1"):
            envs.step(STILL)
        envs.step(STILL)
        assert envs.returns[0] == pytest.approx(envs.raw_rewards[0])


def test_only_transforms_inside_who_raised_count_the_lost_step():
    inner = NormalizeRewards(both(9, 3))
    raising = NormalizeObservations(inner)
    with StackObservations(raising, 2) as envs:
        envs.reset(seed=0)
        envs.step(STILL)
        counted = inner.count, raising.count
        with pytest.raises(EnvError, match="environment 1"):
            envs.step(STILL)
        assert (inner.count, raising.count) == (counted[0] + 2, counted[1])


def test_a_start_that_was_lost_is_a_start_around():
    with EpisodeStatistics(StackObservations(NormalizeObservations(both(9, 3)), 2)) as envs:
        envs.reset(seed=0)
        envs.step(STILL)
        with pytest.raises(EnvError, match="environment 1"):
            envs.reset()
        saved = envs.save_state()
        for _ in range(2):
            envs.reset(env_ids=[1])
            obs, *_ = envs.step(STILL)
            assert np.split(obs[0], 2)[0].tolist() == np.split(obs[0], 2)[1].tolist()
            envs.load_state(saved)
        for _ in range(9):
            *_, infos = envs.step(STILL)
        assert infos[0]["episode"]["l"] == 9


def test_after_a_start_that_was_lost_rewards_count():
    with ScaleRewards(NormalizeObservations(both(9, 1)), 1.0) as envs:
        envs.async_reset(seed=0)
        with pytest.raises(EnvError, match="environment 1"):
            envs.recv(min_envs=2)
        envs.send(STILL, BOTH)
        assert (envs.recv(min_envs=2).rewards != 0).all()


def test_results_that_an_interrupt_left_come_before_anything_else():
    interrupts = []

    def function(obs):
        if interrupts:
            raise interrupts.pop()
        return obs

    inner = both(9, 99)
    with StackObservations(
        TransformObservations(inner, function, inner.observation_space), 2
    ) as envs:
        begin(envs, True)
        first, *_ = step(envs, True)
        envs.send(STILL, BOTH)
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            envs.recv(min_envs=2)
        for operation in (
            partial(envs.step, STILL),
            envs.save_state,
            partial(envs.clone_state, 0, 1),
        ):
            with pytest.raises(AlreadySteppingError, match="receive them with recv first"):
                operation()
        second = envs.recv(min_envs=2)
        third, *_ = envs.step(STILL)
        assert second.obs[:, :3].tolist() == first[:, 3:].tolist()
        assert third[:, :3].tolist() == second.obs[:, 3:].tolist()


def test_an_error_of_the_environments_restarts_nothing():
    with StackObservations(both(9, 99), 2) as envs:
        begin(envs, True)
        step(envs, True)
        first, *_ = step(envs, True)
        with pytest.raises(Exception, match="send"):
            envs.recv()
        second, *_ = step(envs, True)
        assert second[:, :3].tolist() == first[:, 3:].tolist()
