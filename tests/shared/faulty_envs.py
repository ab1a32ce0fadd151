"""Environments with faults at a given place. Workers import this module."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from xuance_envs.engine.system.current import system

PLACES = (
    "construct",
    "reset",
    "auto-reset",
    "step",
    "render",
    "call",
    "get_attr",
    "set_attr",
    "close",
)


def kill(envs, worker=0):
    """Kill a worker, and wait until it is gone."""
    end = system.open_end_watch(envs.pids[worker])
    os.kill(envs.pids[worker], signal.SIGKILL)
    assert select.select([end], [], [], 20)[0]
    system.close_end_watch(end)


def step_for(seconds, envs):
    """Step until an error, but not longer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        envs.step([0] * envs.num_envs)


def exit_at_once():
    os._exit(7)


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    print("about to crash", file=sys.stderr)
    ctypes.string_at(0)


def wait():
    time.sleep(1000)


def spin():
    while True:
        pass


def hang_in_c():
    ctypes.PyDLL(None).sleep(1000)  # unlike CDLL, PyDLL does not release the GIL


def fail():
    raise ValueError("as told")


ENDINGS = {"exits": exit_at_once, "is killed": be_killed, "crashes": crash}
"""Faults that end the process."""

HANGS = {"waits": wait, "spins": spin, "hangs in C": hang_in_c}
"""Faults that keep the process from answering."""

FAULTS = {**ENDINGS, **HANGS, "raises": fail}


class FaultyEnv(gymnasium.Env):
    """Environment that draws a number per episode, counts its steps, and has a fault on request.

    Its observation is the number of steps in the episode, and the drawn number. Its info has the
    total numbers of steps and episodes. Files whose names start with ``path`` count the faults
    across processes.
    """

    def __init__(self, place="", fault="", path=None, times=1, after=0, length=5, env_seed=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.render_mode = "rgb_array"
        self.place = place
        self.fault = fault
        self.path = path
        self.times = times
        self.after = after
        self.length = length
        self.env_seed = env_seed
        self.seeds = []
        self.steps = self.episodes = 0
        self.level = 0
        self.commit_at("construct")

    def commit_at(self, place):
        if place == self.place and self.steps >= self.after and self.is_due():
            FAULTS[self.fault]()

    def is_due(self):
        if self.path is None:
            return True
        for number in range(self.times):
            try:
                os.close(os.open(f"{self.path}.{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.commit_at("reset")
        if self.steps:
            self.commit_at("auto-reset")
        self.episodes += 1
        self.count = 0
        return self.observe()

    def step(self, action):
        self.commit_at("step")
        self.steps += 1
        self.count += 1
        observation, info = self.observe()
        return observation, 1.0, self.count >= self.length, False, info

    def observe(self):
        observation = np.array([self.count, self.np_random.random()])
        return observation, {"steps": self.steps, "episodes": self.episodes}

    def render(self):
        self.commit_at("render")
        return np.zeros((1, 1, 3), np.uint8)

    def method(self):
        self.commit_at("call")
        return os.getpid()

    @property
    def attribute(self):
        self.commit_at("get_attr")
        return self.level

    @attribute.setter
    def attribute(self, value):
        self.commit_at("set_attr")
        self.level = value

    def close(self):
        self.commit_at("close")


class ParentEnv(FaultyEnv):
    """Environment with a child process that runs for 3 s and holds inherited resources."""

    def __init__(self):
        super().__init__()
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
