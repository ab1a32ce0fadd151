"""Random walks in episodes of different lengths, and their expected results."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env[Any, Any]):
    """Environment whose episodes have a fixed length, by turns terminated and truncated."""

    def __init__(self, length: int, shape: tuple[int, ...] = (3,), dtype: Any = np.float64) -> None:
        whole = np.dtype(dtype).kind in "iu"
        low, high = (0, 255) if whole else (-np.inf, np.inf)
        self.observation_space = spaces.Box(low, high, shape, dtype)
        self.action_space = spaces.Box(-2.0, 6.0, (2,), np.float32)
        self.length, self.shape, self.dtype = length, shape, dtype
        self.episodes = 0
        self.rng = np.random.default_rng(0)
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps = 0
        self.episodes += 1
        self.place = self.rng.normal(size=self.shape) * 3 + 100
        return self.seen(), {"number": self.episodes, "why": "reset"}

    def step(self, action: Any) -> Any:
        self.actions.append(np.array(action))
        self.steps += 1
        self.place = self.place + self.rng.normal(size=self.place.shape) + np.mean(action) / 8
        over = self.steps == self.length
        ends = (over, False) if self.episodes % 2 else (False, over)
        return self.seen(), float(self.rng.normal() * 5), *ends, {"steps": self.steps}

    def pid(self) -> int:
        return os.getpid()

    def seen(self) -> Any:
        return self.place.astype(self.dtype)


LENGTHS = (4, 7, 5, 1000, 1, 6)
"""Some episodes end together; one environment's end in every step, and one's never."""

WALKS = [partial(Walk, length) for length in LENGTHS]

NUM_WALKS = len(WALKS)

STILL = np.zeros((NUM_WALKS, 2), np.float32)


class ExpectedStep:
    """The expected results of one call."""

    def __init__(self, obs: Any, rewards: Any, ended: list[int], first: list[Any]) -> None:
        self.obs = np.array(obs)
        self.rewards = np.array(rewards, np.float64)
        self.ended = ended
        self.first = np.array(first).reshape(len(first), *self.obs.shape[1:])

    @property
    def all_observations(self) -> Any:
        return np.concatenate([self.obs, self.first]).astype(np.float64)


class ReferenceWalks:
    """The walks in a bare loop."""

    def __init__(self, env_fns: Any = WALKS) -> None:
        self.envs = [env_fn() for env_fn in env_fns]

    def reset(self, seed: int | None = None, env_ids: Any = None) -> ExpectedStep:
        ids = range(len(self.envs)) if env_ids is None else env_ids
        seeds = {i: None if seed is None else seed + i for i in ids}
        obs = [self.envs[i].reset(seed=seeds[i])[0] for i in ids]
        return ExpectedStep(obs, np.zeros(len(obs)), [], [])

    def step(self, actions: Any = STILL, env_ids: Any = None) -> ExpectedStep:
        ids = list(range(len(self.envs))) if env_ids is None else list(env_ids)
        rows = [self.envs[i].step(action) for i, action in zip(ids, actions, strict=False)]
        ended = [row for row, result in enumerate(rows) if result[2] or result[3]]
        first = [self.envs[ids[row]].reset()[0] for row in ended]
        return ExpectedStep([row[0] for row in rows], [row[1] for row in rows], ended, first)
