"""Rollouts of many agents: what is kept, and advantages that stop where an agent ends."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from agents_envs import FOREVER, MIXED, Crowd, Herd, Silent
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn

from xuance_envs import (
    DummyVecEnv,
    DummyVecMultiAgentEnv,
    Gym_Env,
    MultiAgentRolloutCollector,
    MultiAgentVecEnv,
    RolloutCollector,
    per_agent_rows,
)
from xuance_envs.compat import from_gymnasium

GAMMA, LAMBDA = 0.9, 0.8


class Judge(nn.Module):
    """Values are a function of the observation and the state, actions of nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.masks = []

    def get_actions_and_values(self, obs, states, masks, actions=None):
        self.masks.append(masks)
        values = obs.sum(-1) + (0 if states is None else states.sum(-1, keepdim=True) / 10)
        actions = torch.arange(obs.shape[1]).expand(obs.shape[:2]) % 3
        return actions, values * 2, values, values


def herds(num_envs=3, kind=Herd, **options):
    return MultiAgentVecEnv([partial(kind, **options)] * num_envs, backend="dummy")


@pytest.mark.parametrize("length", [7, 4])
@pytest.mark.parametrize("plays", [MIXED, {"a_0": (1, FOREVER), "a_1": (1, 3), "a_2": (3, 4)}])
def test_rollouts_hold_what_happened(plays, length):
    with MultiAgentRolloutCollector(
        herds(plays=plays, length=length, masks="info"), Judge(), 10, seed=2
    ) as collector:
        plain = herds(plays=plays, length=length, masks="info")
        step = plain.reset(seed=2)
        count = len(plays)
        actions = np.tile(np.arange(count) % 3, (3, 1))
        for rollout in range(2):
            collector.rollout()
            assert collector.global_steps == 30 * (rollout + 1)
            for t in range(10):
                start = step.next()
                assert collector.obs[t].numpy().tobytes() == start.obs.tobytes()
                np.testing.assert_allclose(collector.states[t], start.state, rtol=1e-6)
                np.testing.assert_array_equal(collector.action_masks[t], start.action_masks)
                np.testing.assert_array_equal(collector.actions[t], actions)
                step = plain.step(actions)
                goes_on = step.acted & step.alive if t == 9 else np.False_
                for name, expected in (
                    ("rewards", step.rewards),
                    ("acted", step.acted),
                    ("done_flags", step.terminated),
                    ("trunc_flags", step.truncated | goes_on),
                ):
                    np.testing.assert_array_equal(getattr(collector, name)[t], expected)
            flags = (collector.done_flags | collector.trunc_flags).any(2).T
            flags[:, -1] = True
            assert collector.ep_counts.tolist() == flags.sum(1).tolist()
            assert len(collector.end_obs) == len(collector.end_states) == flags.sum()
            assert collector.total_return == pytest.approx(float(collector.rewards.sum()))
        assert collector.actions.dtype == collector.done_flags.dtype == torch.int32
        assert len(collector.finished_ep_returns) > 0
        assert collector.mean_ep_length <= length
        assert np.isfinite(collector.mean_ep_return)
        plain.close()
    assert collector.vec_env.closed


def test_advantages_stop_where_agents_go_whether_they_say_so_or_not():
    judge = Judge()
    envs, plain = (
        MultiAgentVecEnv([partial(Crowd, plays=MIXED)] * 5, backend="dummy") for _ in range(2)
    )
    step = plain.reset(seed=6)
    silent = 0
    with RolloutCollector(envs, judge, 20, seed=6) as collector, plain:
        for _ in range(3):
            collector.rollout()
            advantages = collector.advantages(GAMMA, LAMBDA)
            steps = []
            for _ in range(20):
                start = step.next()
                step = plain.step(np.tile(np.arange(4) % 3, (5, 1)))
                steps.append((step, values_of(judge, start), values_of(judge, step)))
            following = values_of(judge, step.next())
            for env, agent in np.ndindex(5, 4):
                advantage, value_after = 0.0, following[env, agent]
                for t in reversed(range(20)):
                    came, values, last_values = steps[t]
                    here = env, agent
                    if not came.acted[here]:
                        expected = 0.0
                    else:
                        if came.terminated[here] or not (came.alive[here] or came.truncated[here]):
                            advantage, value_after = 0.0, 0.0
                            silent += not came.terminated[here]
                        elif came.truncated[here]:
                            advantage, value_after = 0.0, last_values[here]
                        delta = came.rewards[here] + GAMMA * value_after - values[here]
                        expected = advantage = delta + GAMMA * LAMBDA * advantage
                    assert advantages[t, env, agent] == pytest.approx(expected, rel=1e-4, abs=1e-4)
                    value_after = values[here]
    assert silent > 3


def test_a_collector_and_rows_tell_the_same_ends():
    options = {"kind": Silent, "plays": MIXED, "length": 5}
    rows = per_agent_rows(herds(**options))
    rows.reset(seed=1)
    with RolloutCollector(herds(**options), Judge(), 12, seed=1) as collector:
        collector.rollout()
        for t in range(12):
            *_, terminated, truncated, infos = rows.step(np.tile(np.arange(4) % 3, 3))
            acted = collector.acted[t].flatten().numpy()
            np.testing.assert_array_equal(infos["acted"], acted)
            np.testing.assert_array_equal(terminated & acted, collector.done_flags[t].flatten())
            assert not truncated.any()
        assert collector.done_flags.sum() > 9
    rows.close()


def values_of(judge, start):
    obs, states = torch.from_numpy(start.obs.copy()), torch.from_numpy(start.state.copy())
    return judge.get_actions_and_values(obs, states.float(), None)[2].numpy()


def test_environments_without_states_and_masks():
    judge = Judge()
    envs = MultiAgentVecEnv([Herd] * 2, backend="dummy", state=False)
    collector = MultiAgentRolloutCollector(envs, judge, 3)
    with pytest.raises(RuntimeError, match="call rollout first"):
        collector.advantages(GAMMA, LAMBDA)
    collector.rollout()
    assert collector.states is None
    assert collector.action_masks is None
    assert judge.masks == [None] * 3
    assert collector.advantages(GAMMA, LAMBDA).shape == (3, 2, 3)
    collector.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda obs: None, "expected 4 outputs"),
        (
            lambda obs: (obs[..., 0], obs[..., 0], obs[:, 0, 0], None),
            r"values: expected shape \(2, 3\)",
        ),
        (lambda obs: (obs, obs[..., 0], obs[..., 0], None), r"actions: expected shape \(2, 3\)"),
    ],
)
def test_answers_are_checked(answer, told):
    class Wrong:
        device = "cpu"

        def get_actions_and_values(self, obs, states, masks, actions=None):
            return answer(obs)

    with (
        MultiAgentRolloutCollector(herds(2), Wrong(), 3) as collector,
        pytest.raises(ValueError, match=told),
    ):
        collector.rollout()


class Parts(Herd):
    """A herd whose observations are dicts of tuples."""

    def observation_space(self, agent):
        return spaces.Dict({"all": spaces.Tuple([super().observation_space(agent)])})

    def reset(self, **given):
        seen, infos = super().reset(**given)
        return {agent: {"all": (each,)} for agent, each in seen.items()}, infos

    def step(self, actions):
        seen, *rest = super().step(actions)
        return {agent: {"all": (each,)} for agent, each in seen.items()}, *rest


class JudgeOfParts(Judge):
    def get_actions_and_values(self, obs, states, masks, actions=None):
        return super().get_actions_and_values(obs["all"][0], states, masks, actions)


def test_observations_may_be_dicts_and_tuples():
    options = {"plays": MIXED, "length": 7}
    in_parts = MultiAgentVecEnv([partial(Parts, **options)] * 3, backend="dummy")
    arrays = MultiAgentRolloutCollector(herds(**options), Judge(), 12, seed=5)
    parts = MultiAgentRolloutCollector(in_parts, JudgeOfParts(), 12, seed=5)
    for _ in range(2):
        arrays.rollout(), parts.rollout()
        assert (parts.obs["all"][0] == arrays.obs).all()
        assert (parts.advantages(GAMMA, LAMBDA) == arrays.advantages(GAMMA, LAMBDA)).all()
    arrays.close(), parts.close()


def test_agents_have_equal_spaces():
    with herds(kinds=2) as envs, pytest.raises(ValueError, match="agents with equal spaces"):
        MultiAgentRolloutCollector(envs, Judge(), 3)


def test_steps_are_at_least_one():
    with herds() as envs, pytest.raises(ValueError, match="steps_per_env: expected an int of at"):
        MultiAgentRolloutCollector(envs, Judge(), 0)


def test_a_rollout_collector_of_many_agents_is_this_one():
    with RolloutCollector(herds(), Judge(), 3, seed=1, window=4) as collector:
        assert type(collector) is MultiAgentRolloutCollector
        assert isinstance(collector, RolloutCollector)
        collector.rollout()
        assert collector.obs.shape == (3, 3, 3, 4)


def test_each_collector_says_whose_environments_it_takes():
    class Derived(RolloutCollector):
        pass

    one = DummyVecEnv([lambda: Gym_Env("CartPole-v1")])
    with one, pytest.raises(TypeError, match="expected a MultiAgentVecEnv, got DummyVecEnv"):
        MultiAgentRolloutCollector(one, Judge(), 3)
    for kind, envs, told in (
        (Derived, herds(), "MultiAgentVecEnv: pass it to RolloutCollector, or"),
        (RolloutCollector, DummyVecMultiAgentEnv([Herd]), "pass its envs_of_agents"),
        (RolloutCollector, SyncVectorEnv([lambda: Gym_Env("CartPole-v1")]), "from_gymnasium"),
        (RolloutCollector, [Herd()], "expected a VecEnv .*, got list$"),
    ):
        with pytest.raises(TypeError, match=told):
            kind(envs, Judge(), 3)
        if kind is Derived:
            RolloutCollector(envs, Judge(), 3).close()  # nothing has happened to them


def test_an_agent_for_one_is_refused():
    class ForOne:
        def get_actions_and_values(self, states, actions=None):
            raise NotImplementedError

    with herds() as envs, pytest.raises(TypeError, match=r"expected \(obs, .* got \(states, act"):
        RolloutCollector(envs, ForOne(), 3)


def test_agents_as_rows_are_collected_one_by_one():
    class Still:
        device = "cpu"

        def get_actions_and_values(self, states, actions=None):
            zeros = torch.zeros(len(states))
            return zeros.int(), zeros, zeros, zeros

    rows = from_gymnasium(per_agent_rows(herds(length=4)))
    with RolloutCollector(rows, Still(), 9, seed=4) as collector:
        collector.rollout()
        plain = herds(length=4)
        step = plain.reset(seed=4)
        for t in range(9):
            np.testing.assert_array_equal(
                collector.states[t].detach(), step.next().obs.reshape(9, 4)
            )
            step = plain.step(np.zeros((3, 3), int))
            np.testing.assert_array_equal(collector.rewards[t], step.rewards.reshape(9))
        plain.close()
