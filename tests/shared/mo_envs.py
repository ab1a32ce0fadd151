"""mo-gymnasium's environments, and their comparison with its vector environment."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same

from xuance_envs import VecEnv

N, STEPS, RESETS = 3, 200, 3

IDS = [
    *("breakable-bottles-v0", "deep-sea-treasure-v0", "deep-sea-treasure-concave-v0"),
    *("deep-sea-treasure-mirrored-v0", "fishwood-v0", "four-room-v0", "fruit-tree-v0"),
    *("minecart-deterministic-v0", "mo-ant-v5", "mo-ant-2obj-v5"),
    *("mo-halfcheetah-v5", "mo-hopper-v5", "mo-hopper-2obj-v5", "mo-humanoid-v5"),
    *("mo-lunar-lander-v3", "mo-lunar-lander-continuous-v3", "mo-mountaincar-v0"),
    *("mo-mountaincar-3d-v0", "mo-mountaincar-timemove-v0", "mo-mountaincar-timespeed-v0"),
    *("mo-mountaincarcontinuous-v0", "mo-reacher-v5", "mo-swimmer-v5", "mo-walker2d-v5"),
    *("resource-gathering-v0", "water-reservoir-v0"),
]
"""Environments that need nothing beyond this package's extras.

minecart-v0 is missing: it draws from NumPy's global generator.
"""

FEW = ["breakable-bottles-v0", "deep-sea-treasure-v0", "mo-reacher-v5", "mo-lunar-lander-v3"]


def make_env(env_id: str) -> Any:
    import mo_gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about bounds
        try:
            return mo_gymnasium.make(env_id)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            pytest.skip(f"{env_id}: {error}")


def parts_of(observations: Any) -> list[Any]:
    return list(observations.values()) if isinstance(observations, dict) else [observations]


def assert_like_theirs(envs: VecEnv, env_id: str, steps: int = STEPS) -> None:
    """Step both, theirs with a reset of the environments whose episodes have ended."""
    from mo_gymnasium.wrappers.vector import MOSyncVectorEnv

    theirs = MOSyncVectorEnv([partial(make_env, env_id)] * N)
    space = copy.deepcopy(envs.action_space)
    space.seed(1)
    assert envs.reward_space == theirs.reward_space
    for t in range(steps):
        if t % (steps // RESETS + 1) == 0:
            seed = 100 * t + 1
            obs, _ = envs.reset(seed=seed)
            expected, _ = theirs.reset(seed=seed)
            assert_same(parts_of(obs), parts_of(expected))
        actions = [space.sample() for _ in range(N)]
        found = envs.step(actions)
        expected, *results, _ = theirs.step(np.stack(actions))
        assert_same(parts_of(found[0]), parts_of(expected))
        for mine, other in zip(found[1:4], results, strict=True):
            assert_same(np.array(mine), other)
        ended = results[1] | results[2]
        if ended.any():
            first, _ = theirs.reset(options={"reset_mask": ended})
            for i in np.flatnonzero(ended).tolist():
                mine = parts_of(found[4][i]["reset_obs"])
                for part, whole in zip(mine, parts_of(first), strict=True):
                    assert_same(np.asarray(part), np.asarray(whole[i]))
    theirs.close()
