"""Vector rewards in the interfaces of other libraries."""

from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vector_reward_envs import GoalsEnv, Summing

from xuance_envs import DummyVecEnv, ScalarizeRewards, SubprocVecEnv
from xuance_envs.compat import from_gymnasium, to_gymnasium
from xuance_envs.compat import gymnasium as drop_ins

FNS = [partial(GoalsEnv, 3, 4)] * 2
WEIGHTS = [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    "make",
    [
        drop_ins.SyncVectorEnv,
        partial(drop_ins.AsyncVectorEnv, context="forkserver"),
        partial(drop_ins.AsyncVectorEnv, context="thread"),
    ],
)
def test_gymnasiums_refuse_them_when_they_are_made(make: Any) -> None:
    with pytest.raises(ValueError, match=r"environment 0: .*numbers, got .*ScalarizeRewards"):
        make(FNS)
    with pytest.raises(ValueError, match=r"environment 1: .*numbers, got the reward_space"):
        make([lambda: Summing(GoalsEnv()), GoalsEnv])
    envs = make([lambda: Summing(GoalsEnv())] * 2)
    envs.reset()
    assert envs.step([1, 1])[1].shape == (2,)
    envs.close()


def test_sb3s_refuse_them_when_they_are_made() -> None:
    pytest.importorskip("stable_baselines3")
    from xuance_envs.compat import sb3, to_sb3

    for make in (sb3.DummyVecEnv, sb3.SubprocVecEnv):
        with pytest.raises(ValueError, match="numbers, got the reward_space"):
            make(FNS)
    with DummyVecEnv(FNS) as envs:
        with pytest.raises(ValueError, match=r"to_sb3: .*to_sb3\(ScalarizeRewards"):
            to_sb3(envs)
        sums = to_sb3(ScalarizeRewards(envs, WEIGHTS))
        sums.reset()
        assert sums.step(np.array([1, 1]))[1].tolist() == [1.5, 1.5]


def test_the_conversion_to_gymnasium_takes_their_sums() -> None:
    with DummyVecEnv(FNS) as envs:
        with pytest.raises(ValueError, match=r"to_gymnasium: .*to_gymnasium\(ScalarizeRewards"):
            to_gymnasium(envs)
        sums = to_gymnasium(ScalarizeRewards(envs, WEIGHTS))
        sums.reset()
        assert sums.step(np.array([1, 1]))[1].tolist() == [1.5, 1.5]


def test_xuances_refuse_them_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    xuance: Any = types.ModuleType("xuance")
    xuance.__version__, xuance.__file__ = "v1.4.4", "xuance.py"
    xuance.environment = types.ModuleType("xuance.environment")
    registry: dict[str, Any] = {"DummyVecEnv": None, "SubprocVecEnv": None}
    xuance.environment.REGISTRY_VEC_ENV = registry
    monkeypatch.setitem(sys.modules, "xuance", xuance)
    monkeypatch.setitem(sys.modules, "xuance.environment", xuance.environment)
    from xuance_envs.compat.xuance import install

    with install(context="forkserver"):
        for name, kind in (("DummyVecEnv", DummyVecEnv), ("SubprocVecEnv", SubprocVecEnv)):
            with pytest.raises(ValueError, match=r"XuanCe: .*numbers, got the reward_space"):
                registry[name]([lambda env_seed: GoalsEnv()] * 2, 1)
            envs = registry[name]([lambda env_seed: Summing(GoalsEnv())] * 2, env_seed=1)
            assert type(envs) is kind
            envs.close()


class Kept(gymnasium.Env[Any, Any]):
    """Observes its step, and ends with the third."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return np.array([0]), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.array([self.count]), 1.0, self.count == 3, False, {}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_a_reset_leaves_the_last_observation(copy: bool, mode: Any) -> None:
    with from_gymnasium(SyncVectorEnv([Kept] * 2, copy=copy, autoreset_mode=mode)) as envs:
        envs.reset()
        for count in (1, 2, 3, 1, 2, 3):
            obs, _, terminated, _, infos = envs.step([0, 0])
            assert_same(obs, np.array([[count]] * 2))
            assert terminated.all() == (count == 3)
            assert ("reset_obs" in infos[0]) == (count == 3)
