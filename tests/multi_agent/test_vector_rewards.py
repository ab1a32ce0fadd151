"""Agents whose rewards are vectors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from agents_envs import Herd, Squad
from comparing import assert_same
from gymnasium import spaces

from xuance_envs import DummyVecMultiAgentEnv, EnvError, MultiAgentVecEnv, as_parallel_env
from xuance_envs.compat import from_gymnasium
from xuance_envs.multi_agent.rows import per_agent_rows
from xuance_envs.transforms import ScalarizeRewards

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)


def vectors(rewards: dict[Any, Any], form: Any = np.array) -> dict[Any, Any]:
    return {agent: form([reward, -3.0 * reward]) for agent, reward in rewards.items()}


class VectorHerd(Herd):
    """A herd whose rewards have two components."""

    form: Any = staticmethod(np.array)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reward_spaces = dict.fromkeys(self.possible_agents, BOX)

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, vectors(rewards, type(self).form), *rest


class ListHerd(VectorHerd):
    form = staticmethod(list)


class WideHerd(VectorHerd):
    """The last agent's rewards have a component too many."""

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        rewards[self.possible_agents[-1]] = np.zeros(3)
        return observations, rewards, *rest


class UndeclaredHerd(VectorHerd):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.reward_spaces


class UnevenHerd(VectorHerd):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reward_spaces[self.possible_agents[1]] = spaces.Box(0, 1, (3,))


class VectorSquad(Squad):
    """XuanCe's form."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reward_spaces = dict.fromkeys(self.agents, BOX)

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, vectors(rewards), *rest


PLAYS = {"a": (1, 3), "b": (1, 9), "c": (2, 5)}


@pytest.mark.parametrize("kind", [VectorHerd, ListHerd])
def test_vectors_of_agents_that_come_and_go(make: Any, kind: Any) -> None:
    fns = [partial(kind, plays=PLAYS, length=4 + i) for i in range(3)]
    envs = make(fns)
    assert envs.reward_space == BOX
    bare = [fn() for fn in fns]
    step = envs.reset(seed=2)
    assert_same(step.rewards, np.zeros((3, 3, 2), np.float32))
    for i, env in enumerate(bare):
        env.reset(seed=2 + i)
    draw = np.random.default_rng(0)
    for _ in range(20):
        actions = [
            {agent: int(draw.integers(env.action_space(agent).n)) for agent in env.agents}
            for env in bare
        ]
        step = envs.step(actions)
        expected = np.zeros((3, 3, 2))
        for i, (env, given) in enumerate(zip(bare, actions, strict=True)):
            for agent, reward in env.step(given)[1].items():
                expected[i, envs.agents.index(agent)] = reward
            if not env.agents:
                env.reset()
        assert_same(step.rewards, expected.astype(np.float32))
        assert_same(envs.exact_rewards, expected)


def test_xuances_form(make: Any) -> None:
    envs = make([VectorSquad] * 2)
    envs.reset()
    step = envs.step([dict.fromkeys(envs.agents, 1)] * 2)
    assert step.rewards.shape == (2, envs.num_agents, 2)
    assert_same(envs.exact_rewards[..., 1], -3 * envs.exact_rewards[..., 0])


def test_undeclared_vectors_name_the_agent_and_the_way_out(make: Any) -> None:
    envs = make([UndeclaredHerd] * 2)
    envs.reset()
    with pytest.raises(EnvError, match=r"agent 'sheep_0': invalid reward: .*\(2,\).*reward_spaces"):
        envs.step([dict.fromkeys(envs.agents, 0)] * 2)


def test_a_wrong_shape_names_the_agent(make_here: Any) -> None:
    envs = make_here([WideHerd] * 2)
    envs.reset()
    with pytest.raises(EnvError, match=r"agent 'sheep_2'.*shape \(2,\).*got shape \(3,\)"):
        envs.step([dict.fromkeys(envs.agents, 0)] * 2)


def test_all_agents_need_the_same_shape(make_here: Any) -> None:
    with pytest.raises(EnvError, match=r"reward_spaces: expected .*same shape \(k,\)"):
        make_here([UnevenHerd] * 2)


def test_environments_need_the_same_spaces(make: Any) -> None:
    with pytest.raises(RuntimeError, match="environment 1 has a different observation_space"):
        make([Herd, VectorHerd])


def test_states_have_the_vectors(make: Any) -> None:
    envs = make([VectorHerd] * 2)
    envs.reset(seed=0)
    actions = [dict.fromkeys(envs.agents, 1)] * 2
    envs.step(actions)
    state = envs.save_state()
    expected = envs.step(actions).rewards
    envs.load_state(state)
    assert_same(envs.step(actions).rewards, expected)


def test_rows_of_agents(make_here: Any) -> None:
    rows = per_agent_rows(make_here([VectorHerd] * 2))
    rows.reset(seed=0)
    _, rewards, *_ = rows.step(np.ones(6, int))
    assert rewards.shape == (6, 2)
    envs = from_gymnasium(per_agent_rows(make_here([VectorHerd] * 2)))
    assert envs.reward_space == BOX
    with ScalarizeRewards(envs, [1, 1]) as sums:
        sums.reset(seed=0)
        assert_same(sums.step(np.ones(6, int))[1], rewards.sum(1).astype(np.float32))


def test_interfaces_of_numbers_refuse_vectors(make_here: Any) -> None:
    with pytest.raises(ValueError, match=r"library=.sb3..*ScalarizeRewards"):
        per_agent_rows(make_here([VectorHerd] * 2), "sb3")
    with pytest.raises(ValueError, match="DummyVecMultiAgentEnv: expected agents whose rewards"):
        DummyVecMultiAgentEnv([VectorSquad] * 2)


def test_a_view_has_the_vectors(make_here: Any) -> None:
    pytest.importorskip("pettingzoo")
    env = as_parallel_env(make_here([VectorHerd] * 2), 1)
    env.reset(seed=0)
    _, rewards, *_ = env.step(dict.fromkeys(env.agents, 1))
    assert env.reward_spaces["sheep_0"] == BOX
    assert {value.shape for value in rewards.values()} == {(2,)}


def test_the_representation_names_the_space() -> None:
    with MultiAgentVecEnv([VectorHerd], backend="dummy") as envs:
        assert "rewards Box" in repr(envs.vec_env.observation_space)
