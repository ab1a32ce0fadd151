"""A vector environment of somebody's own, derived from the contract with a handful of methods."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from example_envs import ReusingEnv

from xuance_envs import ClosedVecEnvError, DummyVecEnv, VecEnv
from xuance_envs.compat import to_gymnasium


class Doubled(VecEnv):
    """Another vector environment, whose rewards count twice."""

    def __init__(self, envs: VecEnv) -> None:
        super().__init__(
            envs.num_envs,
            envs.observation_space,
            envs.action_space,
            max_episode_steps=envs.max_episode_steps,
        )
        self.envs = envs
        self.buf_obs = envs.buf_obs

    def reset(self, *, seed=None, options=None, env_ids=None):
        result = self.envs.reset(seed=seed, options=options, env_ids=env_ids)
        self.buf_obs = self.envs.buf_obs
        return result

    def step_async(self, actions):
        self.envs.step_async(actions)

    def step_wait(self):
        obs, rewards, *ends = self.envs.step_wait()
        self.buf_obs, self.buf_rews = self.envs.buf_obs, 2 * rewards
        return obs, self.buf_rews, *ends

    def close_extras(self):
        self.envs.close()


@pytest.fixture
def envs():
    with Doubled(DummyVecEnv([partial(ReusingEnv, (2,))] * 3)) as envs:
        yield envs


def test_it_steps_as_any_other(envs):
    envs.reset(seed=0)
    rewards = envs.step([5, 6, 7])[1]
    assert rewards.tolist() == envs.buf_rews.tolist() == [2, 2, 2]
    assert envs.exact_rewards.dtype == np.float64
    assert (envs.num_envs, envs.max_episode_steps, envs.statistics()) == (3, 1000, ())
    assert not envs.waiting
    assert not envs.closed


def test_what_it_does_not_define_it_lacks(envs):
    for act in (
        lambda: envs.call("method"),
        lambda: envs.get_attr("name"),
        lambda: envs.set_attr("name", 1),
        lambda: envs.render(),
        lambda: envs.async_reset(),
        lambda: envs.send([0], [0]),
        lambda: envs.recv(),
    ):
        with pytest.raises(NotImplementedError, match="Doubled does not support"):
            act()


def test_it_is_closed_once_and_says_so(envs):
    assert repr(envs) == "Doubled(num_envs=3)"
    envs.close()
    envs.close()
    assert envs.closed
    assert repr(envs) == "Doubled(num_envs=3, closed)"
    with pytest.raises(ClosedVecEnvError):
        envs.reset()


def test_it_is_what_gymnasiums_wrappers_take(envs):
    vector_env = to_gymnasium(envs)
    vector_env.reset(seed=0)
    vector_env.step(np.array([5, 6, 7], np.float32))
    _, rewards, terminated, truncated, infos = vector_env.step(np.array([5, 6, 7], np.float32))
    assert rewards.tolist() == [4, 4, 4]
    assert (terminated | truncated).all()
    assert len(infos["final_obs"]) == 3


class Counting(DummyVecEnv):
    """Vectorized environment whose methods do more than those of its base class."""

    started = finished = 0

    def step_async(self, actions):
        self.started += 1
        super().step_async(actions)

    def step_wait(self):
        self.finished += 1
        return super().step_wait()


class CountingMore(Counting):
    pass


class Mixin:
    started = finished = 1

    def step_wait(self):
        self.finished += 1
        return super().step_wait()


class Mixed(Mixin, DummyVecEnv):
    finished = 0


class Whole(DummyVecEnv):
    """Vectorized environment that counts whole steps."""

    started = 0

    def step(self, actions):
        self.started += 1
        return super().step(actions)


class WholeAndCounting(Mixin, Whole):
    finished = 0
    started = 0


class CountingInBoth(DummyVecEnv):
    started = finished = 0

    def step(self, actions):
        self.started += 1
        return super().step(actions)

    def step_wait(self):
        self.finished += 1
        return super().step_wait()


@pytest.mark.parametrize(
    "kind",
    [Counting, CountingMore, Mixed, WholeAndCounting, CountingInBoth],
    ids=lambda k: k.__name__,
)
def test_step_calls_the_methods_of_a_subclass(kind):
    with kind([partial(ReusingEnv, (2,))] * 2) as envs:
        envs.reset()
        envs.step([0, 0])
        assert (envs.started, envs.finished) == (1, 1)


@pytest.mark.parametrize("of_class", [True, False])
def test_step_calls_methods_that_were_replaced_later(monkeypatch, of_class):
    calls = []
    with DummyVecEnv([partial(ReusingEnv, (2,))] * 2) as envs:
        owner = DummyVecEnv if of_class else envs
        step_wait = owner.step_wait
        monkeypatch.setattr(owner, "step_wait", lambda *args: calls.append(1) or step_wait(*args))
        envs.reset()
        envs.step([0, 0])
    assert calls == [1]
