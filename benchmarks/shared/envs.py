"""Environments with known durations and sizes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class SleepingEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Environment that sleeps for ``seconds`` in every step, like one that waits for a network."""

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


class VaryingSleepEnv(SleepingEnv):
    """Environment that sleeps for between ``shortest`` and ``longest`` seconds in each step."""

    def __init__(self, shortest: float, longest: float) -> None:
        super().__init__(0.0)
        self._limits = shortest, longest

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._seconds = self.np_random.uniform(*self._limits)
        return super().step(action)


class AsyncSleepingEnv(SleepingEnv):
    """Sleeping environment with coroutines, like one with an asynchronous client of a service."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().reset(**kwargs)

    async def step(self, action: np.int64) -> Any:  # type: ignore[override]
        await asyncio.sleep(self._seconds)
        return self._observation, 1.0, False, False, {}


class IdleEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Environment that does nothing, with CartPole's shapes and ``Gym_Env``'s info keys."""

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


class MadeUpEnv(gymnasium.Env[NDArray[Any], np.int64]):
    """Environment with a given CPU time per step, and observations and infos of a given size.

    Episodes never end. Each info is a new dict.
    """

    action_space = spaces.Discrete(2)

    def __init__(
        self,
        seconds: float = 0.0,
        shape: tuple[int, ...] = (4,),
        dtype: Any = np.float32,
        info: dict[str, Any] | None = None,
    ) -> None:
        self.observation_space = spaces.Box(0, 1, shape, dtype)
        self._seconds = seconds
        self._observation = np.ones(shape, dtype)
        self._info = info or {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, dict(self._info)

    def step(self, action: np.int64) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        if self._seconds:
            end = time.thread_time() + self._seconds
            while time.thread_time() < end:
                pass
        return self._observation, 1.0, False, False, dict(self._info)
