"""Agents whose answers are not in order, and where an agent's device is looked for."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from play_envs import PlayEnv
from rollout_reference import Player

from xuance_envs import DummyVecEnv, RayRolloutCollector, RolloutCollector
from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import device_of

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)
BOX = spaces.Box(-1, 1, (2,), np.float32)


class Spoiling(Player):
    """Has its answers changed by a function, once it is set."""

    def __init__(self, space):
        super().__init__(space)
        self.spoil = None

    def get_actions_and_values(self, states, actions=None):
        answer = super().get_actions_and_values(states, actions)
        return answer if self.spoil is None else self.spoil(*answer)


def spoilt(action_space, spoil, steps=4):
    functions = [partial(PlayEnv, i, VECTOR, action_space) for i in range(3)]
    agent = Spoiling(action_space)
    collector = RolloutCollector(DummyVecEnv(functions), agent, steps)
    agent.spoil = spoil
    return collector


def nan_at(tensor, *places):
    tensor = tensor.float()
    tensor[list(places)] = float("nan")
    return tensor


META = torch.device("meta")
FAULTS = {
    "three outputs": (lambda a, p, v, e: (a, p, v), "expected 4 outputs .*, got 3"),
    "five outputs": (lambda a, p, v, e: (a, p, v, e, e), "expected 4 outputs .*, got 5"),
    "one tensor": (lambda a, p, v, e: torch.zeros(4), "expected 4 outputs .*, got Tensor"),
    "nothing": (lambda a, p, v, e: None, "got NoneType"),
    "pairs of actions": (
        lambda a, p, v, e: (a[:, None].repeat(1, 2), p, v, e),
        r"actions: .*\(3,\).*\(3, 2\)",
    ),
    "too few actions": (lambda a, p, v, e: (a[:2], p, v, e), r"actions: .*\(3,\), got \(2,\)"),
    "a column of values": (lambda a, p, v, e: (a, p, v[:, None], e), r"values: .*\(3,\).*\(3, 1\)"),
    "one log_prob": (lambda a, p, v, e: (a, p.sum(), v, e), r"log_probs: .*\(3,\), got \(\)"),
    "values elsewhere": (lambda a, p, v, e: (a, p, v.to(META), e), "values: .* on cpu.* on meta"),
    "actions elsewhere": (lambda a, p, v, e: (a.to(META), p, v, e), "actions: .* on cpu.* on meta"),
    "fractions": (lambda a, p, v, e: (a + 0.5, p, v, e), "expected whole numbers .*, got .*5"),
    "infinity": (lambda a, p, v, e: (a + torch.inf, p, v, e), "whole numbers .*, got .inf. for"),
    "large actions": (lambda a, p, v, e: (a + 3e9, p, v, e), "in the range of int32, got .3"),
    "NaN actions": (lambda a, p, v, e: (nan_at(a, 1), p, v, e), r"actions: .*NaN .*environment 1$"),
    "NaN values": (
        lambda a, p, v, e: (a, p, nan_at(v, 0, 2), e),
        r"values: .*NaN.* 0 .*environments 0, 2",
    ),
    "NaN log_probs": (
        lambda a, p, v, e: (a, nan_at(p, 1), v, e),
        r"log_probs: .*NaN.* 0 .*environment 1$",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_is_not_in_order_is_an_error_that_says_why(fault):
    spoil, said = FAULTS[fault]
    with spoilt(TWO, spoil) as collector:
        with pytest.raises(ValueError, match=f"get_actions_and_values.*{said}"):
            collector.rollout()
        collector.agent.spoil = None
        collector.rollout()  # it stays usable
        assert collector.ep_counts.sum() > 0


def test_arrays_are_not_tensors():
    with (
        spoilt(TWO, lambda a, p, v, e: (a.numpy(), p, v, e)) as collector,
        pytest.raises(TypeError, match=r"actions: expected a torch\.Tensor, got ndarray"),
    ):
        collector.rollout()


def test_nan_actions_of_a_box_do_not_reach_the_environments():
    with spoilt(BOX, lambda a, p, v, e: (nan_at(a, 2), p, v, e)) as collector:
        with pytest.raises(
            ValueError, match=r"actions: expected numbers, got NaN .*environment 2$"
        ):
            collector.rollout()
        assert [env.received for env in collector.vec_env.envs] == [[], [], []]


def test_nan_values_are_located():
    calls = []

    def later(actions, log_probs, values, entropy):
        calls.append(0)
        return actions, log_probs, nan_at(values, 1) if len(calls) > 2 else values, entropy

    with (
        spoilt(TWO, later) as collector,
        pytest.raises(ValueError, match=r"first at step 2 of the rollout in environment 1$"),
    ):
        collector.rollout()


def test_nan_values_of_end_states_are_refused():
    with spoilt(TWO, None) as collector:
        collector.rollout()
        collector.agent.spoil = lambda a, p, v, e: (a, p, nan_at(v, 0), e)
        with pytest.raises(ValueError, match="values of end_states"):
            collector.advantages(0.9, 0.9)
        collector.agent.spoil = lambda a, p, v, e: (a, p, v[:1], e)
        with pytest.raises(ValueError, match="values: expected shape"):
            collector.advantages(0.9, 0.9)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int8, torch.int32, torch.bool]
)
def test_actions_may_have_any_dtype_that_loses_nothing(dtype):
    with spoilt(TWO, lambda a, p, v, e: (a.to(dtype), p.double(), v.double(), e)) as collector:
        collector.rollout()
        assert collector.actions.dtype is torch.int32
        assert collector.values.dtype is torch.float32
        for i, env in enumerate(collector.vec_env.envs):
            assert env.received == collector.actions[:, i].tolist()
            assert type(env.received[0]) is np.int64


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("env_dtype", [np.float64, np.float32, np.float16])
def test_environments_act_as_stored_whatever_the_dtypes_are(dtype, env_dtype):
    space = spaces.Box(-1, 1, (2,), env_dtype)
    with spoilt(space, lambda a, p, v, e: (a.to(dtype) / 3, p, v, e)) as collector:
        collector.rollout()
        collector.vec_step(collector.actions[0].to(dtype))
        stored = torch.cat([collector.actions, collector.actions[:1].to(dtype).float()])
        for i, env in enumerate(collector.vec_env.envs):
            assert np.array(env.received).dtype == env_dtype
            assert np.array_equal(env.received, stored[:, i].numpy().astype(env_dtype))


@pytest.mark.parametrize(
    ("space", "action", "told"),
    [
        (spaces.Discrete(5, start=2**33), 2**33 + 1, "whole numbers in the range of int32"),
        (spaces.Box(0, 2**30, (), np.int64), 2**24 + 1, r"float32 numbers, got \[16777217\]"),
    ],
)
def test_integers_that_rollouts_would_store_changed_are_refused(space, action, told):
    agent = lambda a, p, v, e: (torch.full((3,), action), p, v, e)  # noqa: E731
    with spoilt(space, agent) as collector, pytest.raises(ValueError, match=told):
        collector.rollout()


def test_actions_of_a_discrete_space_may_come_as_a_column():
    with spoilt(TWO, lambda a, p, v, e: (a[:, None], p, v, e)) as collector:
        collector.rollout()
        assert collector.actions.shape == (4, 3)
        for i, env in enumerate(collector.vec_env.envs):
            assert env.received == collector.actions[:, i].tolist()
            assert all(action.shape == () for action in env.received)
        collector.advantages(0.9, 0.9)


# --- the device ---------------------------------------------------------------------------------


def test_the_device_is_as_given_else_the_agents_else_cuda_else_the_cpu(monkeypatch):
    module = torch.nn.Linear(1, 1, device="meta")
    assert device_of(module, "cpu") == torch.device("cpu")
    assert device_of(Player(TWO, "meta"), None) == META
    assert device_of(module, None) == META
    assert device_of(torch.nn.Identity(), None).type == "cpu" or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = []
    monkeypatch.setattr(torch, "empty", lambda _, device: asked.append(device) or torch.zeros(0))
    device_of(object(), None)
    assert asked == ["cuda"]


@pytest.mark.parametrize("kind", [RolloutCollector, partial(RayRolloutCollector, num_collectors=1)])
def test_what_is_no_agent_is_refused_by_the_constructor(kind):
    env_fn = partial(PlayEnv, 0, VECTOR, TWO)
    envs = DummyVecEnv([env_fn]) if kind is RolloutCollector else [env_fn]
    with pytest.raises(TypeError, match=r"agent: expected .*get_actions_and_values.*, got object"):
        kind(envs, object(), steps_per_env=10)


def test_a_collector_shows_its_size_and_its_agent():
    envs = DummyVecEnv([partial(PlayEnv, i, VECTOR, TWO) for i in range(3)])
    with RolloutCollector(envs, Player(TWO), 10) as collector:
        assert repr(collector) == "RolloutCollector(num_envs=3, steps_per_env=10, agent=Player)"


@pytest.mark.parametrize("wrong", [-0.1, 1.01, float("nan")])
@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_factors_of_advantages_are_from_0_to_1(name, wrong):
    numbers, flags = torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool)
    factors = {"gamma": 1, "gae_lambda": 0.0, name: wrong}
    with pytest.raises(ValueError, match=f"{name}: expected a number from 0 to 1, got {wrong}"):
        generalized_advantages(numbers, numbers, flags, flags, torch.zeros(6), **factors)


def test_an_infinite_reward_does_not_reach_other_episodes():
    rewards = torch.tensor([[1.0], [2.0], [float("inf")]])
    ended = torch.tensor([[False], [True], [True]])
    values, end_values = torch.zeros(3, 1), torch.zeros(2)
    advantages = generalized_advantages(
        rewards, values, ended, ended, end_values, gamma=0.5, gae_lambda=1.0
    )
    assert advantages.tolist() == [[2.0], [2.0], [float("inf")]]
