"""Environments whose behavior a number determines; their module has few imports."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class PlayEnv(gymnasium.Env):
    """Environment that samples its observation space; its number determines its behavior."""

    def __init__(
        self,
        number,
        observation_space,
        action_space,
        lengths=(3, 1, 4),
        endings=("terminated", "truncated", "both"),
        told="nothing",
    ):
        self.observation_space = copy.deepcopy(observation_space)
        self.observation_space.seed(number)
        self.action_space = action_space
        self.random = np.random.default_rng(number)
        self.lengths = lengths
        self.endings = endings
        self.told = told
        self.episode = -1
        self.resets = []
        self.received = []

    def reset(self, *, seed=None, options=None):
        self.resets.append(seed)
        self.episode += 1
        self.steps = 0
        self.score = 0.0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.received.append(copy.deepcopy(action))
        self.steps += 1
        reward = float(self.random.normal())
        self.score += reward
        ended = self.steps == self.lengths[self.episode % len(self.lengths)]
        ending = self.endings[self.episode % len(self.endings)] if ended else ""
        terminated, truncated = ending in ("terminated", "both"), ending in ("truncated", "both")
        info = {}
        if self.told != "nothing":
            info = {"episode_score": 10 * self.score, "episode_step": 10 * self.steps}
        if self.told == "record" and ended:
            info["episode"] = {"r": np.array([100 * self.score]), "l": 100 * self.steps}
        return self.observation_space.sample(), reward, terminated, truncated, info


class SeededEnv(PlayEnv):
    """Environment whose first seed determines its observations; it appends its pid to a file."""

    action: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset()

    def step(self, action: Any) -> Any:
        path = os.environ.get("XUANCE_ENVS_TOLD")
        if path and not self.episode and not self.steps:
            with Path(path).open("a") as file:
                file.write(f"{os.getpid()}\n")
        return super().step(action)


class FailingEnv(SeededEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise ValueError("as told")
        return super().step(action)


class DyingEnv(SeededEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class HangingEnv(SeededEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 2:
            threading.Event().wait()
        return super().step(action)


class NeverMadeEnv(SeededEnv):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        threading.Event().wait()


class Uneven(PlayEnv):
    """Its steps take longer or shorter, so that workers answer in any order."""

    def step(self, action):
        time.sleep(float(self.random.random()) * 1e-3)
        return super().step(action)


class Meeting(PlayEnv):
    """Takes a while for a step, and says when it was in the midst of it."""

    def step(self, action):
        time.sleep(0.01)
        result = super().step(action)
        result[-1]["at"] = time.monotonic()
        time.sleep(0.01)
        return result
