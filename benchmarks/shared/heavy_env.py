"""Environment with a state of 60 MiB, registered as ``benchmarks/Heavy-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class HeavyEnv(gymnasium.Env[Observation, np.int64]):
    """Environment with a large attribute, and endless episodes."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.memory = np.zeros(60 * 2**20, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 1.0, False, False, {}


gymnasium.register("benchmarks/Heavy-v0", HeavyEnv, disable_env_checker=True)
