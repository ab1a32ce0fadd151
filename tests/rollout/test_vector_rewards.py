"""Rollouts with vector rewards."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from vector_reward_envs import GoalsEnv, reward_box

from xuance_envs import (
    DummyVecEnv,
    Gym_Env,
    RolloutCollector,
    ScalarizeRewards,
    StateError,
    SubprocVecEnv,
    SyncVecEnv,
)
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.rollout import GifRecorder
from xuance_envs.rollout.collector_actor import CollectorActor, CollectorPlan
from xuance_envs.rollout.env_adapters import SingleAgentEnvs

K, N, T = 3, 4, 10
WEIGHTS = np.array([1.0, -0.5, 2.0])


class Critic:
    """Plays a fixed sequence; the value of component j is (j + 1) times the observation."""

    device = "cpu"

    def __init__(self, k: int | None = K) -> None:
        self.k = k

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        first = states[:, 0]
        values = first if self.k is None else first[:, None] * torch.arange(1.0, self.k + 1)
        return first.int() % 9, torch.zeros(len(states)), values, torch.zeros(len(states))


def lengths(count: int = N) -> list[Any]:
    return [partial(GoalsEnv, K, 3 + i) for i in range(count)]


def vec_env(kind: Any = DummyVecEnv, **options: Any) -> Any:
    return kind(lengths(), **options)


def component(collector: Any, j: int) -> Any:
    """The advantages of a collector of the same transitions with one component only."""
    weights = np.eye(K)[j]

    class One(Critic):
        def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
            acting, log_probs, values, entropy = Critic.get_actions_and_values(self, states)
            return acting, log_probs, values[:, j], entropy

    one = RolloutCollector(vec_env(), One(), T, seed=0, scalarize=weights)
    with one:
        for _ in range(2):
            one.rollout()
            got = one.advantages(0.9, 0.8)
        return one.rewards, got, one


@pytest.mark.parametrize("halves", [1, 2])
def test_rewards_values_and_advantages_of_each_component(halves: Any) -> None:
    options: Any = {"in_series": 2, "context": "forkserver"} if halves == 2 else {}
    kind = SubprocVecEnv if halves == 2 else DummyVecEnv
    with RolloutCollector(vec_env(kind, **options), Critic(), T, seed=0, halves=halves) as found:
        assert found.reward_space == reward_box(K)
        for _ in range(2):
            found.rollout()
            advantages = found.advantages(0.9, 0.8)
        assert found.rewards.shape == found.values.shape == advantages.shape == (T, N, K)
        assert found.rewards.dtype == torch.float32
        assert found.total_return.shape == (K,)
        assert_allclose(found.total_return, found.rewards.sum((0, 1)), rtol=1e-5)
        for j in range(K):
            rewards, expected, one = component(found, j)
            assert torch.equal(found.rewards[..., j], rewards)
            assert torch.equal(advantages[..., j], expected)
            returns = [each[j] for env in found.rolling_ep_returns for each in env]
            assert_allclose(returns, [r for env in one.rolling_ep_returns for r in env], rtol=1e-6)
            for name in ("mean", "lower", "median", "upper", "max"):
                vector = getattr(found, f"{name}_ep_return")
                assert vector.shape == (K,)
                assert_allclose(vector[j], getattr(one, f"{name}_ep_return"), rtol=1e-6)


@pytest.mark.parametrize("how", ["weights", "function"])
def test_scalarized_rewards_are_as_those_of_the_transform(how: str) -> None:
    scalarize: Any = WEIGHTS.tolist() if how == "weights" else lambda rewards: rewards @ WEIGHTS
    with (
        RolloutCollector(vec_env(), Critic(None), T, seed=0, scalarize=scalarize) as found,
        RolloutCollector(ScalarizeRewards(vec_env(), WEIGHTS), Critic(None), T, seed=0) as expected,
    ):
        assert found.reward_space is None
        for _ in range(3):
            found.rollout()
            expected.rollout()
            assert found.rewards.shape == (T, N)
            assert_allclose(found.rewards, expected.rewards, rtol=1e-6, atol=1e-6)
            assert_allclose(found.advantages(0.9, 0.8), expected.advantages(0.9, 0.8), atol=1e-5)
        assert isinstance(found.mean_ep_return, float)
        assert_allclose(found.mean_ep_return, expected.mean_ep_return, rtol=1e-6)


def test_scores_in_infos_count_only_in_the_rewards_shape() -> None:
    fn = partial(Gym_Env, "vector_reward_envs:VectorGoals-v0", disable_env_checker=True, length=4)
    with RolloutCollector(DummyVecEnv([fn] * 2), Critic(), T, seed=0) as found:
        found.rollout()
        assert_allclose(found.mean_ep_return[0], 10)
    weights = [2.0, 0.0, 0.0]
    made = RolloutCollector(DummyVecEnv([fn] * 2), Critic(None), T, seed=0, scalarize=weights)
    with made as found:
        found.rollout()
        assert found.mean_ep_return == 20


def test_before_the_first_episode_there_are_nans() -> None:
    with RolloutCollector(vec_env(), Critic(), 1, seed=0) as found:
        for name in ("mean", "lower", "median", "upper", "max"):
            assert np.isnan(getattr(found, f"{name}_ep_return")).tolist() == [True] * K


def test_single_steps_have_vectors() -> None:
    with RolloutCollector(vec_env(), Critic(), T, seed=0) as found:
        _, rewards, done, _ = found.vec_step(np.zeros(N, int))
        assert (rewards.shape, rewards.dtype) == ((N, K), torch.float32)
        assert done.shape == (N,)


def test_a_state_dict_goes_on_with_the_same_vectors() -> None:
    with RolloutCollector(vec_env(), Critic(), T, seed=0) as found:
        found.rollout()
        state = found.state_dict()
        found.rollout()
        expected, returns = found.rewards, found.rolling_ep_returns
    with RolloutCollector(vec_env(), Critic(), T, seed=9) as other:
        other.load_state_dict(state)
        other.rollout()
        assert torch.equal(other.rewards, expected)
        np.testing.assert_equal(other.rolling_ep_returns, returns)


@pytest.mark.parametrize(
    ("saved", "loading", "got"),
    [(None, WEIGHTS, r"shape \(\), got \(3,\)"), (WEIGHTS, None, r"shape \(3,\), got \(\)")],
)
def test_a_state_of_other_rewards_is_refused(saved: Any, loading: Any, got: str) -> None:
    def collector(scalarize: Any) -> RolloutCollector:
        agent = Critic(K if scalarize is None else None)
        return RolloutCollector(DummyVecEnv(lengths(K)), agent, T, scalarize=scalarize)

    with collector(saved) as found, collector(loading) as other:
        with pytest.raises(StateError, match=f"expected rewards of {got}; use the same scalarize"):
            other.load_state_dict(found.state_dict())
        other.rollout()


@pytest.mark.parametrize(
    ("scalarize", "reason"),
    [
        ([1, 2], "scalarize: weights: expected 3 finite numbers"),
        ([1, 2, np.nan], "scalarize: weights: expected 3 finite numbers"),
        ("abc", "scalarize: weights: expected numbers"),
    ],
)
def test_wrong_weights_are_refused(scalarize: Any, reason: str) -> None:
    with vec_env() as envs, pytest.raises(ValueError, match=reason):
        RolloutCollector(envs, Critic(None), T, scalarize=scalarize)


def test_a_function_must_return_numbers() -> None:
    with vec_env() as envs:
        found = RolloutCollector(envs, Critic(None), T, scalarize=lambda rewards: rewards[:2])
        with pytest.raises(ValueError, match=r"scalarize: expected numbers of shape \(4,\)"):
            found.rollout()


@pytest.mark.parametrize("scalarize", [[1.0], sum])
def test_numbers_cannot_be_scalarized(scalarize: Any) -> None:
    with (
        DummyVecEnv([lambda: Gym_Env("CartPole-v1")]) as envs,
        pytest.raises(ValueError, match="rewards are numbers"),
    ):
        RolloutCollector(envs, Critic(None), T, scalarize=scalarize)


def test_an_agent_with_one_value_is_told_the_way_out() -> None:
    with (
        RolloutCollector(vec_env(), Critic(None), T) as found,
        pytest.raises(ValueError, match=r"values: expected shape \(4, 3\), got \(4,\).*scalar"),
    ):
        found.rollout()


def test_a_recording_shows_each_component(tmp_path: Any, monkeypatch: Any) -> None:
    class Shown(GoalsEnv):
        render_mode = "rgb_array"

        def render(self) -> Any:
            return np.zeros((40, 120, 3), np.uint8)

        def reward(self, action: Any) -> Any:
            return np.array([0.5, -1.0, 0.0])

    texts = []
    from xuance_envs.rollout import recorder

    class Draw:
        def __init__(self, image: Any) -> None: ...

        def text(self, at: Any, text: str, **_: Any) -> None:
            texts.append(text)

    monkeypatch.setattr(recorder.ImageDraw, "Draw", Draw)
    made = GifRecorder(1, folder=tmp_path)
    with RolloutCollector(DummyVecEnv([Shown]), Critic(), 4, recorder=made) as found:
        found.rollout()
        made.set_state(made.state())
    assert texts == [
        f"Total Reward: {text}" for text in ("0", "(0.5, -1, 0)", "(1, -2, 0)", "(1.5, -3, 0)")
    ]
    assert made.count == 1


def test_the_collector_that_makes_its_environments_scalarizes() -> None:
    with SyncVecEnv(GoalsEnv, 2, T, agent=Critic(None), scalarize=WEIGHTS, device="cpu") as found:
        found.rollout()
        assert found.rewards.shape == (T, 2)


@pytest.mark.parametrize("scalarize", [None, WEIGHTS])
def test_a_remote_collector_returns_the_same(scalarize: Any) -> None:
    agent = Critic(None if scalarize is not None else K)
    options = {"steps_per_env": T, "scalarize": scalarize}
    plan = CollectorPlan(
        *(0, range(N), dumps_for_worker(lengths()), [{}] * N, [0, 1, 2, 3], 1, None, None),
        *(dumps_for_worker(agent), torch.get_rng_state().numpy().tobytes(), options),
    )
    actor = CollectorActor(plan)
    ok, (spaces, _) = actor.call("build")
    assert ok
    assert (spaces.reward_space is None) == (scalarize is not None)
    ok, results = actor.call("rollout", 0)
    assert ok
    actor.close()
    with RolloutCollector(vec_env(), agent, T, seed=0, scalarize=scalarize) as found:
        found.rollout()
        assert_allclose(results["rewards"], found.rewards)


def test_adapters_keep_numbers_as_they_are() -> None:
    with DummyVecEnv([lambda: Gym_Env("CartPole-v1")]) as envs:
        adapter = SingleAgentEnvs(envs, Critic(None))
        assert adapter.spaces.reward_space is None
        adapter.reset()
        envs.step_async([0])
        assert adapter.step_wait().results[0] is envs.buf_rews
