"""States of environments in actors."""

from __future__ import annotations

import numpy as np
import pytest
from backends import DUMMY, RAY
from comparing import assert_same
from saving_matrix import goes_on, makers
from stateful_envs import Collector

from xuance_envs import DummyVecEnv, EnvStates, RayVecEnv_Gym

N = 4


def test_actors_and_processes_go_on_from_each_others_states(actors: None) -> None:
    rng = np.random.default_rng(1)
    actions = rng.integers(4, size=(30, N))
    with (
        RayVecEnv_Gym([Collector] * N, in_series=2, num_cpus_per_worker=0.01) as envs,
        DummyVecEnv([Collector] * N) as others,
    ):

        def played(those: object) -> list[object]:
            found = []
            for each in actions[9:]:
                *arrays, infos = those.step(each)
                found.append((arrays, list(infos)))
            return found

        envs.reset(seed=1)
        others.reset(seed=5)
        for each in actions[:9]:
            envs.step(each)
        state = EnvStates.from_bytes(envs.save_state().to_bytes(), trusted=True)
        expected = played(envs)
        others.load_state(state)
        assert_same(played(others), expected)
        envs.load_state(state)
        assert_same(played(envs), expected)
        obs, _ = envs.clone_state(3, range(N))
        assert_same(list(obs), [obs[3]] * N)
        obs, *_ = envs.step([2] * N)
        assert_same(list(obs), [obs[3]] * N)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", makers())
def test_the_whole(actors: None, name: str) -> None:
    assert goes_on(makers()[name], RAY, DUMMY) >= 3
    assert goes_on(makers()[name], DUMMY, RAY) >= 3
