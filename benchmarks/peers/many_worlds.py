"""Artificial multi-agent environments that every library can import, with few requirements."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

try:
    from pettingzoo import ParallelEnv
except ImportError:  # in libraries' environments without PettingZoo
    ParallelEnv = object

AGENTS, SIZE, ACTIONS = 8, 16, 5


class Cheap(ParallelEnv):
    """Agents that observe a few numbers, with almost no work per step.

    Args:
        length: steps of an episode.
        terminating: True if agent k terminates in step 20 + 10 k.
        rich: True if infos have masks and numbers.
    """

    metadata = {"name": "cheap_v0", "render_modes": []}  # noqa: RUF012  # as in PettingZoo
    render_mode = None

    def __init__(self, length: int = 100, terminating: bool = False, rich: bool = False) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(AGENTS)]
        box = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self._observation_spaces = dict.fromkeys(self.possible_agents, box)
        self._action_spaces = {agent: spaces.Discrete(ACTIONS) for agent in self.possible_agents}
        self._ends = {agent: 20 + 10 * i for i, agent in enumerate(self.possible_agents)}
        self._length, self._terminating, self._rich = length, terminating, rich
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self._seen = self._rng.random((AGENTS, SIZE), np.float32)
        self._masks = self._rng.random((AGENTS, ACTIONS)) < 0.5
        self._masks[:, 0] = True
        self._time = 0
        return self._observations(), self._infos()

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._time += 1
        agents, over = self.agents, self._time >= self._length
        self._seen = self._seen * np.float32(0.99)
        observations, infos = self._observations(), self._infos()
        rewards = {agent: 1.0 if actions[agent] == 0 else 0.5 for agent in agents}
        if self._terminating:
            time, ends = self._time, self._ends
            terminated = {agent: time >= ends[agent] for agent in agents}
            self.agents = [] if over else [agent for agent in agents if not terminated[agent]]
        else:
            terminated = dict.fromkeys(agents, False)
            self.agents = [] if over else agents
        return observations, rewards, terminated, dict.fromkeys(agents, over), infos

    def _observations(self) -> dict[str, Any]:
        if len(self.agents) == AGENTS:
            return dict(zip(self.agents, self._seen))  # noqa: B905  # strict=True is slower
        return {agent: self._seen[int(agent[6:])] for agent in self.agents}

    def _infos(self) -> dict[str, Any]:
        if not self._rich:
            return {agent: {} for agent in self.agents}
        masks = self._masks
        return {
            agent: {"action_mask": masks[int(agent[6:])], "score": 1.5} for agent in self.agents
        }

    def close(self) -> None:
        pass


def make(world: str) -> Any:
    """Create an environment by its name in the benchmark.

    ``"states"`` is ``"spread"`` with a state, which only some implementations support. Reading the
    state computes all observations again.
    """
    if world in ("spread", "states"):
        for package in ("mpe2", "pettingzoo.mpe"):
            try:
                module = importlib.import_module(f"{package}.simple_spread_v3")
            except ImportError:
                continue
            env = module.parallel_env(N=3, max_cycles=25)
            if world == "spread":
                env.state_space = None
            return env
        raise ImportError("simple_spread_v3 needs mpe2")
    return Cheap(terminating=world == "terminating", rich=world == "rich")
