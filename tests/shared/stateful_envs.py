"""Environments for tests of saving and loading. Workers import this module."""

from __future__ import annotations

import collections
import functools
import random
import threading

import gymnasium
import numpy as np
from gymnasium import spaces

PLAIN = spaces.Box(-1e9, 1e9, (3,), np.float64)


class Thing:
    """An object of a custom class."""

    def __init__(self, number):
        self.number = number
        self.friend = None


class Collector(gymnasium.Env):
    """Environment with many kinds of attributes: objects, shared arrays, views, generators."""

    observation_space = PLAIN
    action_space = spaces.Discrete(4)

    def __init__(self, length=7, scale=2.0):
        self.length = length
        self.buffer = np.zeros(12)
        self.part = self.buffer[3:9:2]
        self.turned = np.arange(6.0).reshape(2, 3).T
        self.things = [Thing(1), Thing(2)]
        self.things[0].friend = self.things[1]
        self.queue = collections.deque([self.buffer], maxlen=3)
        self.counts = collections.Counter()
        self.old = np.random.RandomState(3)
        self.plain = random.Random(5)
        self.scaled = lambda value: value * scale
        self.ways = {"up": self.up, "down": lambda value: value - scale}
        self.lock = threading.Lock()
        self.steps = 0
        self.episodes = 0

    def up(self, value):
        return value + self.steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.old.seed(seed)
            self.plain.seed(seed)
            self.action_space.seed(seed)
        self.steps = 0
        self.episodes += 1
        self.part[:] = self.np_random.random(3)
        return self.observation(), {"episode": self.episodes, "name": f"episode {self.episodes}"}

    def observation(self):
        return np.array([self.buffer.sum(), self.turned.sum(), self.things[1].number], float)

    def step(self, action):
        self.steps += 1
        self.counts[int(action)] += 1
        self.buffer *= 1.01
        self.buffer[5] += self.scaled(self.old.random_sample()) + self.plain.random()
        self.turned += 1
        self.things[0].friend.number += 1
        self.queue.append(self.buffer)
        reward = self.ways["up" if action % 2 else "down"](self.counts[int(action)])
        info = {"trail": self.buffer.copy(), "drawn": self.np_random.integers(1000)}
        if self.steps > 3:
            self.late = self.steps  # an attribute that does not exist at first
        return self.observation(), float(reward), self.steps >= self.length, False, info


class Slotted:
    """An environment without base class, whose attributes are in slots."""

    __slots__ = ("action_space", "count", "observation_space", "rng")

    def __init__(self):
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.rng = np.random.default_rng(4)
        self.count = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.count = 0
        return self.rng.random(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return self.rng.random(1, np.float32), float(self.count), self.count == 5, False, {}

    def close(self):
        pass


class Handle:
    """A library's internal state, which cannot be pickled."""

    def __init__(self):
        self.content = 0.0
        self.of_the_library = threading.Lock()


class SelfSaving(gymnasium.Env):
    """Environment that defines its state with ``__env_state__``."""

    observation_space = PLAIN
    action_space = spaces.Discrete(4)

    def __init__(self):
        self.handle = Handle()
        self.made = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.handle.content = self.np_random.random()
        self.made = 0
        return np.full(3, self.handle.content), {}

    def step(self, action):
        self.made += 1
        self.handle.content += action
        return np.full(3, self.handle.content), 0.0, self.made == 6, False, {}

    def __env_state__(self):
        return self.handle.content, self.made, self._np_random

    def __set_env_state__(self, state):
        self.handle.content, self.made, self._np_random = state


class Heavy(Collector):
    """Environment with so much data that its state does not fit into a message."""

    def __init__(self, number=0):
        super().__init__()
        self.number = number
        self.ballast = np.full(1 << 16, float(number))  # half a MiB

    def observation(self):
        self.ballast[self.steps :: 100] += self.plain.random()
        return np.array([self.ballast.sum(), self.ballast[-1], self.number])


class WithFile(Collector):
    """Environment with an open file."""

    def reset(self, *, seed=None, options=None):
        self.file = open(__file__)  # noqa: SIM115  # the test needs an open file
        return super().reset(seed=seed, options=options)

    def close(self):
        self.file.close()


class Counting(gymnasium.Wrapper):
    """Wrapper that changes an attribute of its class in each step."""

    total = 0

    def step(self, action):
        type(self).total += 1
        return self.env.step(action)


def scaled_by(factor):
    """Create an environment with a function that refers to a number."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * factor)


def of_length(length):
    return Collector(length)


MAKERS = {
    "collector": Collector,
    "slotted": Slotted,
    "self-saving": SelfSaving,
    "cart pole": functools.partial(gymnasium.make, "CartPole-v1"),
    "acrobot": functools.partial(gymnasium.make, "Acrobot-v1", max_episode_steps=11),
    "black jack": functools.partial(gymnasium.make, "Blackjack-v1"),
    "pendulum": functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=9),
}
