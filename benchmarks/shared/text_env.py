"""Environment whose observations are large texts, registered as ``benchmarks/Text-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 30_000


class TextEnv(gymnasium.Env[str, np.int64]):
    """Environment with a different text in each step, and endless episodes."""

    observation_space = spaces.Text(SIZE, charset="0123456789")
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return self._text(), {}

    def step(self, action: np.int64) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._text(), 1.0, False, False, {}

    def _text(self) -> str:
        self._step += 1
        return f"{self._step:0{SIZE}d}"


gymnasium.register("benchmarks/Text-v0", TextEnv, disable_env_checker=True)
