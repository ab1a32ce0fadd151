"""Any vector environment as one of Stable-Baselines3's, beside its own."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from comparing import assert_same
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv as TheirDummyVecEnv
from stable_baselines3.common.vec_env import VecFrameStack
from walking import STILL, WALKS, Walk

from xuance_envs import DummyVecEnv, Gym_Env, SubprocVecEnv
from xuance_envs.compat import to_sb3
from xuance_envs.transforms import EpisodeStatistics, NormalizeObservations, StackObservations


class InParts(Walk):
    def __init__(self, length):
        super().__init__(length)
        self.observation_space = spaces.Dict({"a": self.observation_space})

    def seen(self):
        return {"a": self.place}


@pytest.mark.parametrize("make_envs", [WALKS, [partial(InParts, 3)] * 6], ids=["box", "dict"])
@pytest.mark.parametrize("copy", [True, False])
def test_it_does_what_theirs_does(make_envs, copy):
    ours, theirs = to_sb3(DummyVecEnv(make_envs, copy=copy)), TheirDummyVecEnv(make_envs)
    for envs in (ours, theirs):
        envs.seed(3)
    assert_same(ours.reset(), dict(theirs.reset()) if make_envs is not WALKS else theirs.reset())
    assert ours.reset_infos == theirs.reset_infos
    for _ in range(12):
        obs, rewards, dones, infos = ours.step(STILL)
        right = theirs.step(STILL)
        assert_same(obs, dict(right[0]) if make_envs is not WALKS else right[0])
        assert rewards.tolist() == right[1].tolist()
        assert dones.tolist() == right[2].tolist()
        for info, right_info in zip(infos, right[3], strict=True):
            last, right_last = (
                each.pop("terminal_observation", None) for each in (info, right_info)
            )
            assert_same(last, right_last)
            assert info == right_info
        assert ours.reset_infos == theirs.reset_infos
    ours.close()
    theirs.close()


def test_attributes_and_methods_reach_the_environments():
    envs = to_sb3(SubprocVecEnv(WALKS, context="forkserver", in_series=3))
    assert envs.render_mode is None
    envs.reset()
    assert envs.get_attr("length", [1, 3]) == [7, 1000]
    envs.set_attr("length", 9, [2, -1])
    assert envs.get_attr("length") == [4, 7, 9, 1000, 1, 9]
    assert len(set(envs.env_method("pid"))) == 2
    assert envs.env_is_wrapped(Monitor, 2) == [False]
    envs.close()
    assert envs.vec_env.closed


def test_each_environment_gets_its_own_options():
    class Told(Walk):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"options": options, "seed": seed}

    envs = to_sb3(DummyVecEnv([partial(Told, 3)] * 3))
    envs.set_options([{"a": 1}, {}, {"a": 2}])
    envs.seed(5)
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == [{"a": 1}, None, {"a": 2}]
    assert [info["seed"] for info in envs.reset_infos] == [5, 6, 7]
    envs.set_options({"b": 1})
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == [{"b": 1}] * 3
    envs.set_options([{"c": np.zeros(2)}, {"c": np.zeros(2)}, {"c": np.ones(2)}])
    envs.reset()
    assert [info["options"]["c"][0] for info in envs.reset_infos] == [0, 0, 1]
    envs.close()


def test_their_algorithms_learn_on_ours_within_transforms():
    inner = DummyVecEnv([partial(Gym_Env, "CartPole-v1")] * 4)
    envs = to_sb3(EpisodeStatistics(StackObservations(NormalizeObservations(inner), 2)))
    model = PPO(
        "MlpPolicy", VecFrameStack(envs, 2), n_steps=64, batch_size=64, device="cpu", seed=1
    )
    model.learn(512)
    assert model.observation_space.shape == (16,)
    assert len(model.ep_info_buffer) > 5
    assert np.mean([episode["l"] for episode in model.ep_info_buffer]) > 8
    assert envs.vec_env.transforms[2].count > 512
    envs.close()


def test_only_vec_envs_are_converted():
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    with pytest.raises(TypeError, match="to_sb3: expected a VecEnv, got SyncVectorEnv; conv"):
        to_sb3(envs)
