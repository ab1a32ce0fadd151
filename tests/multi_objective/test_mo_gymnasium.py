"""mo-gymnasium's environments in every backend, bitwise as in its ``MOSyncVectorEnv``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from mo_envs import FEW, IDS, N, assert_like_theirs, make_env
from vector_reward_envs import GoalsEnv

from xuance_envs import DummyVecEnv, Gym_Env, ScalarizeRewards, make_vec
from xuance_envs.compat import from_gymnasium

mo_gymnasium = pytest.importorskip("mo_gymnasium")

from mo_gymnasium.wrappers import LinearReward, MORecordEpisodeStatistics
from mo_gymnasium.wrappers.vector import MOSyncVectorEnv

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize("env_id", FEW)
def test_in_every_backend(make: Any, env_id: str) -> None:
    assert_like_theirs(make([partial(make_env, env_id)] * N), env_id)


@pytest.mark.long
@pytest.mark.parametrize("env_id", IDS)
def test_all_in_every_backend(make: Any, env_id: str) -> None:
    assert_like_theirs(make([partial(make_env, env_id)] * N), env_id)


@pytest.mark.parametrize("copied", [True, False])
def test_their_vector_environment_as_ours(copied: bool) -> None:
    fns = [partial(make_env, "deep-sea-treasure-v0")] * N
    with (
        from_gymnasium(MOSyncVectorEnv(fns, copy=copied)) as envs,
        DummyVecEnv(
            [partial(Gym_Env, "deep-sea-treasure-v0", disable_env_checker=True)] * N
        ) as others,
    ):
        assert envs.reward_space == others.reward_space
        assert_same(envs.buf_rews, others.buf_rews)
        for each in (envs, others):
            each.reset(seed=0)
        for chosen in np.random.default_rng(0).integers(4, size=(100, N)):
            mine, expected = envs.step(chosen), others.step(chosen)
            for one, other in zip(mine[:4], expected[:4], strict=True):
                assert_same(one, other)
            for info, other in zip(mine[4], expected[4], strict=True):
                assert info.keys() == other.keys()
                assert_same(info["episode_score"], other["episode_score"])
                if "reset_obs" in info:
                    assert_same(info["reset_obs"], other["reset_obs"])


def test_only_as_many_components_as_an_info_stores() -> None:
    with from_gymnasium(MOSyncVectorEnv([partial(GoalsEnv, 2048)])) as envs:
        envs.reset(seed=0)
        envs.step([0])
    engine = MOSyncVectorEnv([partial(GoalsEnv, 2049)])
    with pytest.raises(ValueError, match=r"at most 2048 components.* got 2049"):
        from_gymnasium(engine)


def test_their_scalarization_needs_no_declaration() -> None:
    weights = np.array([1.0, 0.5])
    fns = [lambda: LinearReward(make_env("deep-sea-treasure-v0"), weights)] * N
    with (
        DummyVecEnv(fns) as envs,
        ScalarizeRewards(
            DummyVecEnv([partial(make_env, "deep-sea-treasure-v0")] * N), weights
        ) as others,
    ):
        assert envs.reward_space is None
        for each in (envs, others):
            each.reset(seed=0)
        for action in (1, 3, 1, 1):
            np.testing.assert_allclose(envs.step([action] * N)[1], others.step([action] * N)[1])


def test_their_statistics_are_vectors_in_infos() -> None:
    fns = [lambda: MORecordEpisodeStatistics(make_env("deep-sea-treasure-v0"))] * N
    with DummyVecEnv(fns) as envs:
        envs.reset(seed=0)
        *_, terminated, _, infos = envs.step([1] * N)
        assert terminated.all()
        assert_same(infos[0]["episode"]["r"], envs.buf_rews[0])


def test_made_by_id() -> None:
    with make_vec(
        "mo_gymnasium:deep-sea-treasure-v0", 2, backend="dummy", disable_env_checker=True
    ) as envs:
        assert envs.reward_space.shape == (2,)
