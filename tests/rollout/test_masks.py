"""Masks of actions: given to agents that take them, and kept for the update."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from gymnasium import spaces
from masked_envs import MaskedEnv

from xuance_envs import DummyVecEnv, RolloutCollector, SubprocVecEnv

N, T = 3, 12


class Obedient:
    """Chooses the first action that is allowed, and keeps what it was given."""

    def __init__(self):
        self.given = []

    def get_actions_and_values(self, states, actions=None, masks=None):
        self.given.append(masks)
        count = len(states)
        if masks is None:
            actions = torch.zeros(count, dtype=torch.int64)
        else:
            assert (masks.dtype, masks.device) == (torch.bool, states.device)
            actions = masks.int().argmax(1)
        return actions, torch.zeros(count), torch.ones(count), torch.zeros(count)


class Insisting(Obedient):
    def get_actions_and_values(self, states, actions, masks):
        return super().get_actions_and_values(states, actions, masks)


class Ignorant(Obedient):
    def get_actions_and_values(self, states, actions=None):
        return super().get_actions_and_values(states, actions)


def collecting(agent, kind=DummyVecEnv, where=("method",), **options):
    functions = [partial(MaskedEnv, number, where=where) for number in range(N)]
    return RolloutCollector(kind(functions, **options), agent, T, device="cpu")


@pytest.mark.parametrize("where", [("method",), ("action_mask",)], ids=["method", "info"])
@pytest.mark.parametrize("kind", [DummyVecEnv, SubprocVecEnv])
def test_an_agent_that_takes_masks_is_given_those_of_its_states(kind, where):
    options = {"check_actions": True}
    if kind is SubprocVecEnv:
        options["context"] = "forkserver"
    agent = Obedient()
    with collecting(agent, kind, where, **options) as collector:
        envs = [MaskedEnv(number) for number in range(N)]
        for env in envs:
            env.reset()
        for _ in range(2):
            agent.given.clear()
            collector.rollout()
            assert (collector.action_masks.shape, collector.action_masks.dtype) == (
                (T, N, 6),
                torch.bool,
            )
            for t in range(T):
                way = 2 if where == ("method",) else 0
                expected = [env.mask(way).tolist() for env in envs]
                assert collector.action_masks[t].tolist() == expected
                for env in envs:
                    if env.step(0)[2]:
                        env.reset()
            assert torch.equal(collector.action_masks, torch.stack(agent.given))
            assert torch.equal(collector.actions, collector.action_masks.int().argmax(2).int())


def test_a_rollouts_masks_are_the_callers():
    with collecting(Obedient()) as collector:
        collector.rollout()
        first = collector.action_masks
        before = first.clone()
        collector.rollout()
        assert torch.equal(first, before)
        assert not torch.equal(first, collector.action_masks)


def test_an_agent_that_takes_none_is_given_none():
    agent = Ignorant()
    with collecting(agent) as collector:
        collector.rollout()
        assert collector.action_masks is None
        assert set(agent.given) == {None}
        assert set(collector.vec_env.get_attr("asked")) == {0}


def test_where_there_are_none_an_agent_does_without_if_it_can():
    agent = Obedient()
    with collecting(agent, where=()) as collector:
        collector.rollout()
        assert collector.action_masks is None
        assert set(agent.given) == {None}
        collector.advantages(0.9, 0.9)
    with (
        collecting(Insisting(), where=()) as collector,
        pytest.raises(AttributeError, match="environment 0 provided no action mask"),
    ):
        collector.rollout()


def test_for_values_alone_everything_is_allowed():
    agent = Insisting()
    with collecting(agent) as collector:
        collector.rollout()
        agent.given.clear()
        assert collector.advantages(0.9, 0.9).shape == (T, N)
        assert agent.given[0].all()


def test_a_forbidden_action_names_its_environment():
    class Careless(Obedient):
        def get_actions_and_values(self, states, actions=None, masks=None):
            actions, *others = super().get_actions_and_values(states, actions, masks)
            actions[1] = (~masks[1]).int().argmax()
            return actions, *others

    with (
        collecting(Careless(), check_actions=True) as collector,
        pytest.raises(ValueError, match="the action mask of environment 1 forbids its action"),
    ):
        collector.rollout()


def test_parts_of_a_multi_discrete_action_come_one_after_the_other():
    space = spaces.MultiDiscrete([2, 4])

    class Two(Obedient):
        def get_actions_and_values(self, states, actions=None, masks=None):
            _, *others = super().get_actions_and_values(states, actions, masks)
            parts = [part.int().argmax(1) for part in masks.split([2, 4], 1)]
            return torch.stack(parts, 1), *others

    functions = [partial(MaskedEnv, number, space=space) for number in range(N)]
    with RolloutCollector(DummyVecEnv(functions), Two(), T, device="cpu") as collector:
        collector.rollout()
        assert collector.action_masks.shape == (T, N, 6)


class Forgetful(MaskedEnv):
    """Gives masks in its first steps only."""

    steps = 0

    def step(self, action):
        *results, info = super().step(action)
        self.steps += 1
        return *results, info if self.steps < 3 else {}


def test_masks_that_end_within_a_rollout_are_an_error():
    envs = DummyVecEnv([partial(Forgetful, number, where=("action_mask",)) for number in range(N)])
    with (
        RolloutCollector(envs, Obedient(), T, device="cpu") as collector,
        pytest.raises(AttributeError, match="environment 0 provided no action mask"),
    ):
        collector.rollout()
