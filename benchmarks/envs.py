"""Environments whose time is known: that wait, and that do nothing."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class SleepingEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Sleeps in every step, as one does that waits for a network or for another simulator.

    Args:
        seconds: how long.
    """

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._observation = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return self._observation, 1.0, False, False, {}


class IdleEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Does nothing, and gives CartPole's shapes with the two numbers that Gym_Env has in infos."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)
        self._info = {"episode_step": 1, "episode_score": 1.0}
        self._result = self._observation, 1.0, False, False, self._info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, self._info

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self._result
