"""Environments whose rewards are vectors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def reward_box(k: int, high: float = np.inf) -> spaces.Box:
    return spaces.Box(-np.inf, high, (k,), np.float64)


class GoalsEnv(gymnasium.Env[Any, Any]):
    """Rewards of ``k`` components: the step's number, the action and a random number, repeated.

    ``form`` turns each float64 reward into what the environment returns.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(9)

    def __init__(self, k: int = 3, length: int = 4, form: Any = None, high: float = np.inf) -> None:
        self.reward_space = reward_box(k, high)
        self.length = length
        self.form = form
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), {}

    def reward(self, action: Any) -> Any:
        numbers = [self.count, float(action), self.np_random.normal()]
        return np.resize(numbers, self.reward_space.shape)

    def step(self, action: Any) -> Any:
        self.count += 1
        reward = self.reward(action)
        ended = self.count == self.length
        if self.form is not None:
            reward = self.form(reward)
        return np.array([float(self.count)]), reward, ended, False, {"action": int(action)}


class UndeclaredEnv(GoalsEnv):
    """The same without a ``reward_space``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._k = self.reward_space.shape[0]
        del self.reward_space

    def reward(self, action: Any) -> Any:
        return np.full(self._k, float(action))


class Summing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turns vectors into numbers, and declares it."""

    reward_space = None

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, float(np.sum(reward)), *rest


class SummingSilently(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same without declaring it."""

    step = Summing.step


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that knows nothing of rewards."""


gymnasium.register("VectorGoals-v0", GoalsEnv, max_episode_steps=6)
gymnasium.register("UndeclaredGoals-v0", UndeclaredEnv)
