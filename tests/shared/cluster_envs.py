"""Environments that report their process and node, and end or block the process on request."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

GO_ON, DIE, SLEEP, FAIL = range(4)


class PlacedEnv(gymnasium.Env[Any, Any]):
    """Environment that observes the numbers of its episode and step, with reward 1."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(4)

    def __init__(self, env_seed: int | None = None) -> None:
        self.env_seed = env_seed
        self.level = 0
        self.seconds = 60.0
        self.seeds: list[int | None] = []
        self.at = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.at += [1, -self.at[1]]
        return self.at.copy(), {"step": 0}

    def step(self, action: int) -> Any:
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == SLEEP:
            time.sleep(self.seconds)
        if action == FAIL:
            raise RuntimeError("as told")
        self.at[1] += 1
        return self.at.copy(), 1.0, False, False, {"step": int(self.at[1])}

    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class PacedEnv(PlacedEnv):
    """Environment with slow steps, which appends its pid to the file named by a variable."""

    def __init__(self, pace: float = 0.02) -> None:
        super().__init__()
        self.pace = pace
        if path := os.environ.get("XUANCE_ENVS_TOLD"):
            with open(path, "a") as file:
                file.write(f"{os.getpid()}\n")

    def step(self, action: int) -> Any:
        time.sleep(self.pace)
        return super().step(action)
