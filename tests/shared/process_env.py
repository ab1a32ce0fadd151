"""An environment that reports its process, and blocks or ends it on request."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class ProcessEnv(gymnasium.Env[Any, Any]):
    """Environment that reports its process, and blocks or ends it on request."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(3)
    WAIT, EXIT = 1, 2

    def __init__(self, seconds: float = 0.0) -> None:
        self.steps = 0
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: int) -> Any:
        if action == self.EXIT:
            os._exit(7)
        if action == self.WAIT:
            time.sleep(self.seconds)
        self.steps += 1
        return np.full(1, self.steps), 0.0, False, False, {}

    def pid(self) -> int:
        return os.getpid()

    def variables(self) -> dict[str, str]:
        return dict(os.environ)

    def modules(self) -> list[str]:
        return list(sys.modules)

    def main_file(self) -> str | None:
        return getattr(sys.modules["__main__"], "__file__", None)

    def draw(self) -> float:
        return float(np.random.random())

    def draw_from_torch(self) -> float:
        import torch

        return torch.rand(1).item()

    def start_a_child(self) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        return child.exitcode
