"""Transforms of vector rewards."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from vector_reward_envs import GoalsEnv, reward_box

from xuance_envs import (
    ClipRewards,
    DummyVecEnv,
    EnvStates,
    EpisodeStatistics,
    Gym_Env,
    NormalizeObservations,
    NormalizeRewards,
    ScalarizeRewards,
    ScaleRewards,
    StateMismatchError,
    TransformRewards,
)

K, N = 3, 4
WEIGHTS = np.array([1.0, -0.5, 2.0])


def vec_env(**options: Any) -> DummyVecEnv:
    return DummyVecEnv([partial(GoalsEnv, K, 3 + i) for i in range(N)], **options)


def actions(steps: int) -> Any:
    return np.random.default_rng(0).integers(9, size=(steps, N))


ELEMENTWISE = {
    "clip": (lambda envs: ClipRewards(envs, -1, 1.5), lambda r: r.clip(-1, 1.5)),
    "scale": (lambda envs: ScaleRewards(envs, -0.3), lambda r: r * -0.3),
    "transform": (lambda envs: TransformRewards(envs, np.sign), np.sign),
    "to two": (lambda envs: TransformRewards(envs, lambda r: r[:, 1:]), lambda r: r[:, 1:]),
    "to one": (lambda envs: TransformRewards(envs, lambda r: r.max(1)), lambda r: r.max(1)),
    "scalarize": (lambda envs: ScalarizeRewards(envs, WEIGHTS), lambda r: (r * WEIGHTS).sum(1)),
    "both": (
        lambda envs: ClipRewards(ScalarizeRewards(ScaleRewards(envs, 2.0), WEIGHTS), -3, 3),
        lambda r: (r * 2.0 * WEIGHTS).sum(1).clip(-3, 3),
    ),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("case", ELEMENTWISE)
def test_vectors_and_what_is_made_of_them(case: str, copy: bool) -> None:
    make, expected = ELEMENTWISE[case]
    with make(vec_env(copy=copy)) as envs, vec_env() as raw:
        shape = expected(np.zeros((N, K))).shape
        assert (envs.reward_space is None) == (len(shape) == 1)
        assert_same(envs.buf_rews, np.zeros(shape, np.float32))
        assert_same(envs.exact_rewards, np.zeros(shape))
        envs.reset(seed=0)
        raw.reset(seed=0)
        for each in actions(12):
            _, rewards, *_ = envs.step(each)
            raw.step(each)
            found = expected(raw.exact_rewards)
            assert_same(np.array(rewards), found.astype(np.float32))
            assert_same(envs.exact_rewards, found)
            assert_same(envs.raw_rewards, raw.buf_rews)
        envs.async_reset(seed=5)
        assert_same(envs.recv(N).rewards, np.zeros(shape, np.float32))
        raw.reset(seed=5)
        envs.send([2] * N, range(N))
        rewards = envs.recv(N).rewards
        _, given, *_ = raw.step([2] * N)
        np.testing.assert_allclose(rewards, expected(given), rtol=1e-6)


def test_spaces_after_transforms() -> None:
    with vec_env() as envs:
        assert ClipRewards(envs, -1, 2).reward_space.low.tolist() == [-1] * K
        clipped = ClipRewards(envs, -1, 2)
        assert ScaleRewards(clipped, -3).reward_space.low.tolist() == [-6] * K
        assert ScaleRewards(clipped, -3).reward_space.high.tolist() == [3] * K
        assert ScaleRewards(envs, 0).reward_space.high.tolist() == [0] * K
        assert NormalizeRewards(envs, clip=5).reward_space.high.tolist() == [5] * K
        assert NormalizeObservations(envs).reward_space == reward_box(K)


def test_each_component_is_normalized_by_its_own_returns() -> None:
    with vec_env() as inner, NormalizeRewards(inner, 0.9) as envs:
        single = [
            NormalizeRewards(TransformRewards(vec_env(), lambda r, j=j: r[:, j]), 0.9)
            for j in range(K)
        ]
        for each in (envs, *single):
            each.reset(seed=0)
        for t, chosen in enumerate(actions(20)):
            if t == 10:
                state = envs.state_dict()
            _, rewards, *_ = envs.step(chosen)
            for j, one in enumerate(single):
                np.testing.assert_allclose(rewards[:, j], one.step(chosen)[1], rtol=1e-5)
                np.testing.assert_allclose(envs.variance[j], one.variance)
                np.testing.assert_allclose(envs.mean[j], one.mean)
                np.testing.assert_allclose(envs.returns[:, j], one.returns)
        assert envs.count == 20 * N
        with vec_env() as others, NormalizeRewards(others, 0.9) as other:
            other.load_state_dict(state)
            assert (other.count, other.mean.shape) == (10 * N, (K,))
        for one in single:
            one.close()


def test_statistics_of_an_episode_are_vectors() -> None:
    with EpisodeStatistics(ScalarizeRewards(vec_env(), WEIGHTS)) as envs, vec_env() as raw:
        envs.reset(seed=0)
        raw.reset(seed=0)
        totals = np.zeros((N, K))
        for chosen in actions(7):
            *_, terminated, _, infos = envs.step(chosen)
            raw.step(chosen)
            totals += raw.exact_rewards
            for i in terminated.nonzero()[0].tolist():
                assert_same(infos[i]["episode"]["r"], totals[i])
                totals[i] = 0


def test_states_through_transforms_have_the_rewards() -> None:
    def make() -> Any:
        return EpisodeStatistics(NormalizeRewards(ScaleRewards(vec_env(), 0.1)))

    with make() as envs:
        envs.reset(seed=0)
        for chosen in actions(5):
            envs.step(chosen)
        rewards, exact = envs.buf_rews, envs.exact_rewards
        state = EnvStates.from_bytes(envs.save_state().to_bytes())
        expected = [envs.step(chosen)[1] for chosen in actions(4)]
        with make() as other:
            other.load_state(state)
            assert_same(other.buf_rews, rewards)
            assert_same(other.exact_rewards, exact)
            for chosen, each in zip(actions(4), expected, strict=True):
                assert_same(other.step(chosen)[1], each)


def test_states_with_rewards_of_another_shape_are_refused() -> None:
    with ELEMENTWISE["to one"][0](vec_env()) as envs, ELEMENTWISE["to two"][0](vec_env()) as other:
        envs.reset(seed=0)
        other.reset(seed=1)
        before = other.buf_obs.tolist()
        with pytest.raises(StateMismatchError, match=r"expected saved rewards of shape \(2,\)"):
            other.load_state(envs.save_state())
        assert other.buf_obs.tolist() == before


def test_weights_can_be_changed_saved_and_shared() -> None:
    with ScalarizeRewards(vec_env(), WEIGHTS) as envs, vec_env() as raw:
        weights = envs.weights
        weights[:] = 7  # a copy
        envs.weights = [0, 0, 1]
        envs.reset(seed=0)
        raw.reset(seed=0)
        envs.step([1] * N)
        raw.step([1] * N)
        assert_same(envs.exact_rewards, raw.exact_rewards[:, 2])
        with ScalarizeRewards(vec_env(), WEIGHTS) as other:
            assert other.state_dict() == {"ScalarizeRewards.weights": WEIGHTS.tolist()}
            other.load_state_dict(envs.state_dict())
            assert other.weights.tolist() == [0, 0, 1]
            envs.weights = WEIGHTS
            other.sync_from(envs)
            assert_same(other.weights, WEIGHTS)
            with pytest.raises(ValueError, match="3 finite numbers"):
                other.load_state_dict({"ScalarizeRewards.weights": [1.0]})
            with pytest.raises(ValueError, match=r"expected the key ScalarizeRewards\.weights"):
                other.load_state_dict({"ScalarizeRewards.weight": [1.0] * 3})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda envs: ScalarizeRewards(envs, [1, 2]), r"3 finite numbers.*got \[1, 2\]"),
        (lambda envs: ScalarizeRewards(envs, [1, 2, np.inf]), "3 finite numbers"),
        (lambda envs: ScalarizeRewards(envs, "abc"), "weights: expected numbers"),
        (lambda envs: ScalarizeRewards(ScalarizeRewards(envs, WEIGHTS), [1]), "are numbers"),
        (lambda envs: TransformRewards(envs, lambda r: r[:2]), "expected 4 rewards of 3 comp"),
        (lambda envs: TransformRewards(envs, lambda r: r[0, 0]), "expected 4 rewards from the"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, reason: str) -> None:
    with vec_env() as envs, pytest.raises(ValueError, match=reason):
        make(envs)


def test_numbers_cannot_be_scalarized() -> None:
    with (
        DummyVecEnv([lambda: Gym_Env("CartPole-v1")]) as envs,
        pytest.raises(ValueError, match="rewards are numbers"),
    ):
        ScalarizeRewards(envs, [1.0])
