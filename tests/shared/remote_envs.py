"""Environments for the tests of the server. Workers import this module, so it imports little."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from xuance_envs.gym.gym_env import Gym_Env


class CountingEnv(gymnasium.Env):
    """Environment that observes its seed, episode and step; ends after ``length`` steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, env_seed=0, length=3):
        self.observation_space = spaces.Box(-1, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(10)
        self.render_mode = "rgb_array"
        self.number = env_seed
        self.length = length
        self.episode = -1
        self.pid = os.getpid()
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.number = seed
        self.episode += 1
        self.steps = 0
        return self.observe(), {"options": options}

    def step(self, action):
        self.steps += 1
        ended = self.steps == self.length
        return self.observe(), float(action), ended and self.episode % 2 == 0, ended, {"x": 1}

    def observe(self):
        return np.array([self.number, self.episode, self.steps], np.float32)

    def render(self):
        return np.full((4, 6, 3), self.steps, np.uint8)

    def describe(self, greeting, *, mark="."):
        return f"{greeting} {self.number}{mark}"


class MischievousEnv(CountingEnv):
    """Environment with faults that actions select.

    1 raises, 2 exits, 3 is killed, 4 hangs, 5 fills memory, 7 ends and 8 kills its process group.
    """

    def step(self, action):
        if action == 1:
            raise ValueError("as told")
        if action == 2:
            os._exit(7)
        if action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 4:
            time.sleep(1000)
        if action == 5:
            hoard = []
            while True:
                hoard.append(np.empty(2**24))
        if action == 7:
            os.kill(0, signal.SIGTERM)
        if action == 8:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        return super().step(action)


class HeavyEnv(MischievousEnv):
    """Environment with a state of 16 MiB."""

    def __init__(self, env_seed=0):
        super().__init__(env_seed)
        self.payload = np.full(2**24, env_seed, np.uint8)


class ClosingEnv(CountingEnv):
    """Environment that creates a file when it is closed."""

    def close(self):
        Path(os.environ["CLOSED"]).touch()


class ObjectEnv(CountingEnv):
    """Environment whose infos contain an object that cannot be sent."""

    def step(self, action):
        return (*super().step(action)[:4], {"odd": object()})


class SlowStepEnv(CountingEnv):
    """Environment that sleeps in each step, with endless episodes."""

    def __init__(self, env_seed=0):
        super().__init__(env_seed, length=10**6)

    def step(self, action):
        time.sleep(0.05)
        return super().step(action)


gymnasium.register("Slow-v0", SlowStepEnv)


class ForgingEnv(CountingEnv):
    """Raises an error that looks like several lines of a log."""

    def step(self, action):
        raise ValueError("x\nFORGED 1\rFORGED 2\x85FORGED 3\u2028FORGED 4")


class SlowStartEnv(CountingEnv):
    """Environment whose constructor hangs."""

    def __init__(self, env_seed=0):
        time.sleep(1000)


def cart_pole(env_seed=None):
    """Create CartPole, as the server's command line does."""
    return Gym_Env("CartPole-v1", seed=env_seed)


class BreedingEnv(MischievousEnv):
    """Environment that starts two processes in their own sessions, one of them without a parent."""

    def __init__(self, env_seed=0):
        super().__init__(env_seed)
        # The duration identifies its processes among those of other tests.
        self.mark = f"{os.getpid()}.5"

    def reset(self, *, seed=None, options=None):
        subprocess.Popen(["sleep", self.mark], start_new_session=True)
        child = os.fork()
        if not child:
            os.setsid()
            if not os.fork():
                os.execvp("sleep", ["sleep", self.mark])
            os._exit(0)
        os.waitpid(child, 0)
        return super().reset(seed=seed)


class BusyEnv(CountingEnv):
    """Environment that uses CPU time in a child process, or memory."""

    def step(self, action):
        if action == 1:
            subprocess.Popen(["sh", "-c", "while :; do :; done"])
        if action == 2:
            self.hoard = b"x" * 2**28
        return super().step(action)


SERVED = {
    "Counting": CountingEnv,
    "Mischievous": MischievousEnv,
    "Breeding": BreedingEnv,
    "Busy": BusyEnv,
    "Closing": ClosingEnv,
    "Heavy": HeavyEnv,
    "CartPole": cart_pole,
}
