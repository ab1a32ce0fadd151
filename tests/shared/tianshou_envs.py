"""Environments for Tianshou's vector environments; their module has few imports."""

from __future__ import annotations

import os
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Environment that moves right for ``length`` steps; one action ends the episode early."""

    action_space = spaces.Discrete(3)
    END = 2

    def __init__(self, length=5, kind="box", seconds=0.0, rewards=0):
        box = spaces.Box(0, length, (2,), np.float32)
        self.observation_space = {
            "box": box,
            "discrete": spaces.Discrete(100),
            "dict": spaces.Dict(
                {"place": box, "deep": spaces.Dict({"number": spaces.Discrete(9)})}
            ),
            "image": spaces.Box(0, 255, (3, 4), np.uint8),
        }[kind]
        self.length = length
        self.kind = kind
        self.seconds = seconds
        self.rewards = rewards
        self.place = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = (options or {}).get("place", 0)
        return self._seen(), {"began_at": self.place, "draw": self.np_random.random()}

    def step(self, action):
        time.sleep(self.seconds)
        self.place += 1
        reward = self.place / 3
        if self.rewards:
            reward = [reward + i for i in range(self.rewards)]
        info = {"given": int(action), "draw": self.np_random.random(), "name": f"{self.place}"}
        return self._seen(), reward, self.place >= self.length, bool(action == self.END), info

    def _seen(self):
        place = np.full(2, self.place, np.float32)
        if self.kind == "dict":
            return {"place": place, "deep": {"number": self.place % 9}}
        if self.kind == "image":
            return np.full((3, 4), self.place, np.uint8)
        return self.place if self.kind == "discrete" else place

    def render(self):
        return np.full((2, 2, 3), self.place, np.uint8)


class Parting(Corridor):
    """Environment that exits its process in a reset with ``parting``."""

    def reset(self, *, parting=False, **given):
        if parting:
            os._exit(3)
        return super().reset(**given)


class Untyped(gymnasium.Env):
    """Environment without spaces, whose observations have the given size."""

    def __init__(self, size):
        self.size = size

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.size, 2)), {}

    def step(self, action):
        self.given = action
        return np.full((self.size, 2), action), 1.0, False, False, {}


class Board:
    """Like Tianshou's PettingZooEnv: no ``gymnasium.Env``, and observations outside its space."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    @property
    def unwrapped(self):
        return self

    def reset(self, **kwargs):
        return {"agent_id": "first", "obs": np.zeros(2), "mask": [True, False]}, {}

    def step(self, action):
        seen = {"agent_id": "second", "obs": np.ones(2), "mask": [False, True]}
        return seen, [1.0, -1.0], False, False, {}

    def close(self):
        pass


class Broken(Corridor):
    lock = threading.Lock()  # cannot be pickled

    def step(self, action):
        if action == self.END:
            raise ZeroDivisionError("broken on purpose")
        return super().step(action)


class Fatal(Corridor):
    def step(self, action):
        if action == self.END:
            os._exit(7)
        return super().step(action)


class Holding(gymnasium.Wrapper):
    """Wrapper with an attribute that the wrapped environment has with a different value."""

    length = "the wrapper's"
