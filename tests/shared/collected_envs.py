"""Environments and agents for collectors on a cluster, and the values to compare."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from play_envs import SeededEnv
from rollout_reference import Player, parts_of

torch = pytest.importorskip("torch")

TWO = spaces.Discrete(2)
SPACES = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "dict": spaces.Dict(camera=spaces.Box(0, 255, (8, 6, 3), np.uint8), gear=spaces.Discrete(5)),
}
LENGTHS = ((3, 1, 4), (2, 5), (1,), (7, 2), (30,))
RESULTS = (
    *("states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"),
    *("end_states", "ep_counts", "t_states"),
)
STATISTICS = (
    *("rolling_ep_returns", "rolling_ep_lengths", "finished_ep_returns", "max_ep_return"),
    *("mean_ep_return", "median_ep_length", "global_steps", "total_return"),
)


class Thinker(Player):
    """An agent whose actions depend on the states."""

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        if actions is None:
            first = parts_of(states)[0]
            actions = (first.double().reshape(len(first), -1).sum(1) * 1e3).long() % 2
        return super().get_actions_and_values(states, actions)


class Weighing(torch.nn.Module):
    """An agent whose values are its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing + self.weight[0], nothing


class Drawing(torch.nn.Module):
    """An agent with random values and log-probabilities, the latter from its own generators."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(3)
        self.numpy = np.random.default_rng(3)

    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        n = len(states)
        own = torch.rand(n, generator=self.torch) + torch.from_numpy(self.numpy.random(n) * 1e3)
        return torch.zeros(n).int(), own.float(), torch.rand(n), None


def env_fns(space: Any, kind: Any = SeededEnv) -> list[Any]:
    return [
        partial(kind, number, space, TWO, lengths, told="record")
        for number, lengths in enumerate(LENGTHS)
    ]


def collected(collector: Any, rollouts: int = 3) -> list[dict[str, Any]]:
    found = []
    with collector:
        for _ in range(rollouts):
            collector.rollout()
            found.append({name: getattr(collector, name) for name in RESULTS})
            # Copies, because a local collector keeps changing these objects.
            found[-1] |= {name: copy.deepcopy(getattr(collector, name)) for name in STATISTICS}
            found[-1]["advantages"] = collector.advantages(0.9, 0.8)
    return found


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        for name, value in one.items():
            if name in STATISTICS:
                assert value == other[name], name
                continue
            for part, same in zip(parts_of(value), parts_of(other[name]), strict=True):
                assert (part.dtype, part.requires_grad) == (same.dtype, same.requires_grad), name
                assert torch.equal(part, same), name
