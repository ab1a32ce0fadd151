"""Environments with action masks."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class MaskedEnv(gymnasium.Env):
    """Environment whose masks depend on its number, step and episode."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float32)

    def __init__(self, number=0, length=4, where=("method",), space=None):
        self.action_space = spaces.Discrete(6) if space is None else space
        self.number = number
        self.length = length
        self.where = where
        self.episode = self.count = 0
        self.asked = 0
        self.extra = 0
        if "method" in where:
            self.action_masks = self.mask_by_method

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self._shown(), self._info()

    def step(self, action):
        self.count += 1
        ended = self.count == self.length + self.number
        return self._shown(), 1.0, ended, False, self._info()

    def _shown(self):
        return np.full(1, self.count, np.float32)

    def _info(self):
        keys = {"action_mask": 0, "avail_actions": 1}
        return {key: self.mask(keys[key]).astype(np.int8) for key in self.where if key in keys}

    def mask_by_method(self):
        self.asked += 1
        return self.mask(2)

    def mask(self, way):
        """Return the mask in the current state, which differs by source."""
        bits = 1 + self.number + 7 * self.count + 29 * self.episode + 64 * way + self.extra
        return np.array([bits * 0x9E3779B1 >> k & 1 for k in range(7, 13)], bool)


class AnswersWith(MaskedEnv):
    """Environment whose mask method returns a given answer, or raises it if it is an exception."""

    def __init__(self, answer, space=None):
        super().__init__(space=space)
        self.answer = answer

    def mask_by_method(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
