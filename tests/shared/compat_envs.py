"""Environments for comparisons with other libraries; workers import nothing slow for them."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import time

import gymnasium
import numpy as np
from example_envs import PLAIN, NamedEnv
from gymnasium import spaces

VALUES = [
    lambda k: {"int": k},
    lambda k: {"int": k, "float": k / 2, "bool": k % 2 == 0},
    lambda k: {"float32": np.float32(k), "uint8": np.uint8(k % 200)},
    lambda k: {"text": f"word {k}", "none": None},
    lambda k: {"array": np.arange(3) + k, "int": k},
    lambda k: {"nested": {"int": k, "deeper": {"float": k / 4, "array": np.ones(2) * k}}},
    lambda k: {"numpy_bool": np.bool_(k % 2)},
    lambda k: {"list": [k, k + 1], "_odd": k},
    lambda k: {},
]


class GivenEnv(gymnasium.Env):
    """Environment that stores the last action, and sleeps for it if it is a float."""

    observation_space = PLAIN

    def __init__(self, shape=(1,)):
        self.action_space = spaces.Box(-9, 9, shape)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.last = {"given": repr(action)}
        if isinstance(action, float):
            time.sleep(action)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class InfoEnv(gymnasium.Env):
    """Environment that returns infos of changing kinds, or always of one kind."""

    action_space = spaces.Discrete(3)

    def __init__(self, number=0, length=4, kind=None, shape=(2,)):
        self.observation_space = spaces.Box(-1e6, 1e6, shape, np.float64)
        self.number = number
        self.length = length
        self.kind = kind
        self.calls = 0
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {**self._info(), "options": str(options)}

    def step(self, action):
        self.count += 1
        ended = self.count == self.length + self.number
        truncated = ended and self.calls % 2 == 0
        return self._observe(), self.count / 3, ended and not truncated, truncated, self._info()

    def _observe(self):
        return np.full(self.observation_space.shape, self.calls + 100.0 * self.number)

    def _info(self):
        self.calls += 1
        kind = self.calls + self.number if self.kind is None else self.kind
        return VALUES[kind % len(VALUES)](self.calls)


class SampleEnv(gymnasium.Env):
    """Environment with samples of a space as observations, and frames of one color."""

    def __init__(self, space, colour=0):
        self.observation_space = copy.deepcopy(space)
        self.action_space = space
        self.render_mode = "rgb_array"
        self.colour = colour

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {"seed": seed}

    def step(self, action):
        self.steps += 1
        truncated = self.steps == 3
        return self.observation_space.sample(), 0.5, truncated, truncated, {}

    def render(self):
        return np.full((4, 4, 3), self.colour, np.uint8)


class SlowEnv(NamedEnv):
    """Environment that sleeps in reset and step, for the seconds in its name."""

    def reset(self, *, seed=None, options=None):
        time.sleep(self.name)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.sleep()
        return super().step(action)

    def sleep(self):
        time.sleep(self.name)


class CountingEnv(SlowEnv):
    """``SlowEnv`` that counts its resets and calls of ``nap``, which fail if told to."""

    resets = naps = 0

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.resets += 1
        return result if not options else 1 / 0

    def nap(self, divisor=1):
        self.sleep()
        self.naps += 1 / divisor


class FailingEnv(gymnasium.Env):
    """Environment that raises on resets with an odd seed, and on all actions but 0."""

    observation_space, action_space = PLAIN, spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed and seed % 2:
            raise ZeroDivisionError("odd 100% of the time")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if action:
            raise ZeroDivisionError(f"action {action}")
        return np.zeros(2, np.float32), 0.0, False, False, {}


class ParentEnv(NamedEnv):
    """Environment that starts a child process in reset."""

    def reset(self, *, seed=None, options=None):
        child = multiprocessing.get_context("fork").Process(target=os.getpid)
        child.start()
        child.join()
        return super().reset(seed=seed, options=options)


class LethalEnv(NamedEnv):
    """Environment that observes its number of steps; action 1 kills its process."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if action:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1
        return np.full(2, self.steps, np.float32), 1.0, False, False, {}


class LethalAtRandom(LethalEnv):
    """``LethalEnv`` with random first observations."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2).astype(np.float32), {}
