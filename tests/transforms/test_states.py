"""Environments within transforms, saved, loaded and cloned with what the transforms remember."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from walking import NUM_WALKS, STILL, WALKS, Walk

from xuance_envs import DummyVecEnv, EnvStates, StateMismatchError, SubprocVecEnv
from xuance_envs.transforms import (
    ClipActions,
    ClipRewards,
    EpisodeStatistics,
    NormalizeObservations,
    NormalizeRewards,
    RescaleActions,
    StackObservations,
    TransformObservations,
)

CHAINS = {
    "normalized": lambda envs: NormalizeObservations(NormalizeRewards(envs)),
    "stacked": lambda envs: StackObservations(envs, 3),
    "transformed": lambda envs: TransformObservations(
        envs, np.sin, spaces.Box(-1, 1, (3,), np.float64)
    ),
    "many": lambda envs: EpisodeStatistics(
        StackObservations(
            NormalizeObservations(ClipRewards(ClipActions(RescaleActions(NormalizeRewards(envs))))),
            2,
        )
    ),
}

chains = pytest.mark.parametrize("chain", CHAINS)


def plain(value):
    """A result in a form that can be compared, without the time that episodes took."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key != "t"}
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return list(map(plain, value)) if not np.isscalar(value) and value is not None else value


def buffers(envs):
    flags = envs.buf_dones, envs.buf_truncations
    return plain((envs.buf_obs, envs.buf_rews, *flags, envs.exact_rewards, list(envs.buf_infos)))


def steps(envs, count=10):
    return [(plain(envs.step(STILL)), envs.state_dict()) for _ in range(count)]


@chains
@pytest.mark.parametrize("played", [0, 1, 4, 7])
def test_what_comes_next_is_what_would_have_come(chain, played):
    with CHAINS[chain](DummyVecEnv(WALKS)) as envs, CHAINS[chain](DummyVecEnv(WALKS)) as other:
        acting, _ = envs.reset(seed=3)
        for _ in range(played):
            acting, *_, infos = envs.step(STILL)
            acting = acting.copy()
            for i, info in enumerate(infos):
                if "reset_obs" in info:
                    acting[i] = info["reset_obs"]
        state, were = envs.save_state(), buffers(envs)
        learned = envs.state_dict()
        right = steps(envs)
        other.reset(seed=9)
        other.step(STILL)
        for vec_env in (envs, other):
            obs, infos = vec_env.load_state(EnvStates.from_bytes(state.to_bytes()))
            assert plain(obs) == plain(acting)
            assert len(infos) == NUM_WALKS
            assert vec_env.state_dict() == learned, "loading counts nothing"
            assert buffers(vec_env) == were
            assert steps(vec_env) == right


@chains
def test_a_state_goes_from_workers_into_this_process(chain):
    options = {"context": "forkserver", "in_series": 4}
    with (
        CHAINS[chain](SubprocVecEnv(WALKS, **options)) as envs,
        CHAINS[chain](DummyVecEnv(WALKS)) as other,
    ):
        envs.reset(seed=3)
        steps(envs, 4)
        state = envs.save_state()
        other.load_state(state)
        assert steps(other) == steps(envs)


@chains
def test_some_go_back_and_the_others_stay(chain):
    with CHAINS[chain](DummyVecEnv(WALKS)) as envs:
        envs.reset(seed=3)
        steps(envs, 3)
        for transform in envs.transforms:
            transform.freeze()
        ids = [5, 0, 2]
        state, before = envs.save_state(ids), envs.buf_obs
        right = steps(envs, 4)
        last = envs.buf_obs
        learned = envs.state_dict()
        envs.load_state(state, ids)
        assert envs.state_dict() == learned
        others = [1, 3, 4]
        assert envs.buf_obs[ids].tolist() == before[ids].tolist()
        assert envs.buf_obs[others].tolist() == last[others].tolist()
        for (result, _), (right_result, _) in zip(steps(envs, 4), right, strict=True):
            for i in ids:
                assert result[0][1][i] == right_result[0][1][i]
                assert result[1][1][i] == right_result[1][1][i]
                assert result[4][i] == right_result[4][i]


@chains
def test_clones_go_on_as_what_they_are_clones_of(chain):
    with CHAINS[chain](DummyVecEnv([WALKS[0]] * 6)) as envs:
        envs.reset(seed=3)
        steps(envs, 4)  # all have just begun an episode
        for _ in range(2):
            obs, _ = envs.clone_state(1, [0, 4])
            assert obs.tolist()[0] == obs.tolist()[1]
            for result, _ in steps(envs, 6):
                for part in (result[0][1], result[1][1], result[4]):
                    assert part[0] == part[1] == part[4]
                assert result[0][1][0] != result[0][1][2]


def _doubled(envs):
    both = spaces.Dict({"a": envs.observation_space, "b": envs.observation_space})
    return TransformObservations(envs, lambda obs: {"a": obs, "b": obs}, both)


@pytest.mark.parametrize(
    ("chain", "others"),
    [
        ((StackObservations, 4), (StackObservations, 1)),
        ((StackObservations, 1), (StackObservations, 4)),
        ((_doubled,), (TransformObservations, np.copy, spaces.Box(-np.inf, np.inf, (1,)))),
    ],
    ids=["fewer", "more", "parts"],
)
def test_states_of_transforms_with_other_spaces_are_refused(chain, others):
    (make, *args), (make_other, *other_args) = chain, others
    walks = [partial(Walk, 9, (1,))] * 2
    with (
        make(DummyVecEnv(walks), *args) as envs,
        make_other(DummyVecEnv(walks), *other_args) as other,
    ):
        envs.reset(seed=0)
        other.reset(seed=1)
        before = buffers(other.vec_env), buffers(other)
        with pytest.raises(StateMismatchError, match="expected saved observations"):
            other.load_state(envs.save_state())
        assert (buffers(other.vec_env), buffers(other)) == before


def test_states_that_were_saved_through_other_transforms_are_refused():
    with DummyVecEnv(WALKS) as inner, NormalizeObservations(DummyVecEnv(WALKS)) as envs:
        inner.reset(seed=0)
        envs.reset(seed=0)
        before = envs.state_dict(), envs.buf_obs.tolist()
        bare, stacked = inner.save_state(), StackObservations(inner, 2).save_state()
        for state in (bare, stacked):
            with pytest.raises(
                StateMismatchError, match="expected states with data of NormalizeObservations"
            ):
                envs.load_state(state)
        with pytest.raises(TypeError, match="expected an EnvStates, got dict"):
            envs.load_state({})
        assert (envs.state_dict(), envs.buf_obs.tolist()) == before
        inner.load_state(envs.save_state())  # which needs nothing of the transform
        wide = partial(NormalizeObservations, clip=5.0)
        with wide(DummyVecEnv(WALKS)) as other:
            other.load_state(envs.save_state())
            assert other.state_dict() == envs.state_dict()
