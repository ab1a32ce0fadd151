"""Asynchronous environments."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Coroutines(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose ``reset`` and ``step`` give way to others before they run."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.reset(**kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.step(action)


class HandsThrough(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that returns what it is given, without a look."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.env.step(action)


class WaitingEnv(gymnasium.Env[Any, Any]):
    """An asynchronous environment that waits and records its threads."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(100)
    render_mode: str | None = "rgb_array"

    def __init__(self, seconds: float = 0.0, length: int = 1000) -> None:
        self.seconds = seconds
        self.length = length
        self.steps = 0
        self.seen = np.zeros(2)
        self.threads = [threading.current_thread().name]
        self.cancelled = False
        self.closed = False

    async def wait(self, factor: float = 1.0) -> None:
        self.threads.append(threading.current_thread().name)
        await asyncio.sleep(self.seconds * factor)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        super().reset(seed=seed)
        await self.wait()
        self.steps = 0
        self.seen[:] = self.np_random.random(2)  # the array of the last step
        return self.seen, {"steps": 0}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self.steps += 1
        try:
            await self.wait(1.0 + action)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        self.seen += action + self.np_random.random(2)
        over = self.steps >= self.length
        return self.seen, float(action), over, False, {"steps": self.steps, "text": "ä"}

    async def double(self, value: Any) -> Any:
        await self.wait()
        return 2 * value

    async def fail(self) -> None:
        raise KeyError("failed on purpose")

    async def render(self) -> Any:  # type: ignore[override]
        await self.wait()
        return np.full((2, 2, 3), self.steps, np.uint8)

    async def close(self) -> None:  # type: ignore[override]
        await self.wait()
        self.closed = True


class RaisingEnv(WaitingEnv):
    """An environment that raises in the step with action 1."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == 1:
            raise self.error
        return await super().step(action)


class BlockingEnv(WaitingEnv):
    """An environment that blocks the loop's thread in the step with action 1."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == 1:
            time.sleep(2.0)
        return await super().step(action)


class HalfAsync(WaitingEnv):
    """An environment whose ``reset`` is ordinary."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return np.zeros(2), {}


class Awaitables(WaitingEnv):
    """An environment that returns awaitables without being declared so."""

    def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


class AsyncAgents:
    """An asynchronous PettingZoo parallel environment."""

    def __init__(self, env: Any, seconds: float = 0.0) -> None:
        self.env = env
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    async def reset(self, **kwargs: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return self.env.reset(**kwargs)

    async def step(self, actions: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return self.env.step(actions)
