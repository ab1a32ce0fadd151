"""Images that show the step and the action, from environments that can die or hang."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

IMAGE = spaces.Box(0, 255, (64, 64, 4), np.uint8)
KILL, HANG = 100, 101


class ImageEnv(gymnasium.Env[Any, Any]):
    """Observations tell the number of the step and the action."""

    action_space = spaces.Discrete(102)

    def __init__(self, space: spaces.Space[Any] = IMAGE, length: int = 5) -> None:
        self.observation_space = space
        self.length = length

    def observation(self, action: int) -> Any:
        image = np.full(IMAGE.shape, 16 * self.steps + action, np.uint8)
        if isinstance(self.observation_space, spaces.Dict):
            return {"image": image, "speed": np.full(3, self.steps, np.float32)}
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(9), {}

    def step(self, action: Any) -> Any:
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        while action == HANG:
            time.sleep(1)
        self.steps += 1
        return self.observation(int(action)), 1.0, self.steps == self.length, False, {}
