"""A runner that collects rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Rollouts"]


class Rollouts:
    """A runner that collects whole rollouts, and scales their duration to the requested steps."""

    def __init__(self, rollout: Callable[[], None], num_envs: int, length: int) -> None:
        self.num_envs = num_envs
        self._rollout = rollout
        self._length = length

    def run(self, steps: int) -> float:
        count = max(1, round(steps / self._length))
        start = time.perf_counter()
        for _ in range(count):
            self._rollout()
        return (time.perf_counter() - start) * steps / (count * self._length)
