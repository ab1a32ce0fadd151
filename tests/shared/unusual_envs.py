"""Environments with unusual but permitted behavior."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class TakingEnv(gymnasium.Env):
    """Environment that modifies all its inputs: actions, options, arguments, attributes.

    Its observation is the amount that it received.
    """

    def __init__(self):
        self.observation_space = spaces.Box(-1, np.inf, (1,), np.float64)
        self.action_space = spaces.Box(-1, 1, (2,), np.float64)
        self.render_mode = "rgb_array"
        self.held = {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        found = 0.0
        if options is not None:
            found = options.pop("level", 0) + len(options["items"])
            options["items"].append(9)
        return np.array([found], float), {}

    def step(self, action):
        total = float(action.sum())
        action[:] = 1
        return np.array([total]), total, False, False, {}

    def take(self, items, *, more):
        found = len(items), len(more)
        items.append(9)
        more.clear()
        return found

    def is_held(self, value):
        return self.held is value

    @property
    def taken(self):
        return self.held

    @taken.setter
    def taken(self, value):
        value["times"] = value.get("times", 0) + 1
        self.held = value


class SelfReplacingEnv(gymnasium.Env):
    """Environment that replaces its ``step`` and ``reset`` during an episode of 3 steps.

    The reward identifies the ``step`` method, the observation the ``reset`` method.
    """

    def __init__(self):
        self.observation_space = spaces.Box(0, 9, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.render_mode = "rgb_array"
        self.count = 0

    def reset(self, *, seed=None, options=None):
        return self.begin(1.0, seed)

    def next_reset(self, *, seed=None, options=None):
        return self.begin(2.0, seed)

    def step(self, action):
        raise AssertionError("reset has replaced this method")

    def first_step(self, action):
        self.step = self.next_step
        return self.result(1.0)

    def next_step(self, action):
        return self.result(2.0)

    def begin(self, which, seed):
        super().reset(seed=seed)
        self.which = which
        self.count = 0
        self.step = self.first_step
        return np.array([self.which, 0.0]), {}

    def result(self, reward):
        self.count += 1
        if self.count == 3:
            self.reset = self.next_reset
        return np.array([self.which, self.count]), reward, self.count == 3, False, {}


class Simulation:
    """A simulation with some of an environment's attributes."""

    def __init__(self):
        self.rate = 1
        self.level = 2

    def describe(self):
        return "the simulation"

    def step(self):
        self.rate += 1


class ModelEnv:
    """Environment whose attributes have the names that wrappers, specs and ``close`` use."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 9, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.env = Simulation()
        self.unwrapped = "raw"
        self.spec = "steel"
        self.close = "evening"
        self.level = 3

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {}

    def step(self, action):
        return np.ones(1), 1.0, False, False, {}

    def simulated(self):
        return self.env.rate, self.env.level


class ProductionEnv(ModelEnv):
    """The same, with a string as ``env``."""

    def __init__(self):
        super().__init__()
        self.env = "production"


class GymnasiumModelEnv(gymnasium.Env):
    """The same, as far as a ``gymnasium.Env`` allows it."""

    def __init__(self):
        like = vars(ModelEnv())
        theirs = ("unwrapped", "spec", "close")
        vars(self).update({k: v for k, v in like.items() if k not in theirs})
        self.render_mode = "rgb_array"

    reset = ModelEnv.reset
    step = ModelEnv.step
    simulated = ModelEnv.simulated
