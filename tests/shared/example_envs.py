"""Environments for tests. Workers import this module, so it uses only numpy and gymnasium.

Arguments define the behavior, so that a test shows it where it creates an environment.
"""

from __future__ import annotations

import copy
import enum
import os
import signal
import threading

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

PLAIN = spaces.Box(-1e6, 1e6, (2,), np.float32)
TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"


class ReusingEnv(gymnasium.Env):
    """Environment that modifies and returns the same observation and info objects in every step.

    Its observation is the number of the episode (from 1), the number of the step in it (from 0) and
    the last action. Its info contains the same array and the step number, which is also the
    reward.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, lengths=(3, 2), endings=("terminated", "truncated", "both")):
        self.observation_space = spaces.Box(-1, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(100)
        self.lengths = lengths
        self.endings = endings
        self.steps_ever = 0
        self.observation = np.zeros(3, np.float32)
        self.info = {"trail": self.observation, "step": 0}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation += 1
        self.observation[1:] = 0, -1
        self.info["step"] = 0
        return self.observation, self.info

    def step(self, action):
        self.steps_ever += 1
        self.observation[1:] += 1
        self.observation[2] = action
        episode, step = int(self.observation[0]) - 1, int(self.observation[1])
        self.info["step"] = step
        ends = step == self.lengths[episode % len(self.lengths)]
        ending = self.endings[episode % len(self.endings)] if ends else ""
        terminated, truncated = ending in ("terminated", "both"), ending in ("truncated", "both")
        return self.observation, step, terminated, truncated, self.info


class LockingEnv(ReusingEnv):
    """Environment whose infos contain an object that cannot be pickled."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"lock": threading.Lock()}


class GraphReusingEnv(gymnasium.Env):
    """Environment that modifies and returns the same graph in every step."""

    observation_space = spaces.Graph(spaces.Box(-1e6, 1e6, (2,)), None)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.graph = spaces.GraphInstance(np.zeros((4, 2), np.float32), None, None)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.graph.nodes[...] = 0
        return self.graph, {}

    def step(self, action):
        self.graph.nodes[...] += 1
        return self.graph, 0.0, bool(self.graph.nodes[0, 0] == 3), False, {}


class EchoEnv(gymnasium.Env):
    """Environment that samples its observation space and records its actions.

    Its seed determines all samples. It overwrites the actions that it received.
    """

    def __init__(self, observation_space, action_space=None, length=3):
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(
            spaces.Discrete(2) if action_space is None else action_space
        )
        self.length = length
        self.received = []
        self.resets = []

    def reset(self, **arguments):
        super().reset(seed=arguments.get("seed"))
        self.resets.append(arguments)
        if "seed" in arguments or len(self.resets) == 1:
            self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {"drawn": self.np_random.integers(1000)}

    def step(self, action):
        self.received.append(copy.deepcopy(action))
        scribble(action)
        self.steps += 1
        observation = self.observation_space.sample()
        ended = self.steps == self.length
        return observation, self.np_random.random(), ended, False, {"steps": self.steps}


def scribble(value):
    """Overwrite every array in a value."""
    if isinstance(value, np.ndarray):
        value[...] = 0
    elif isinstance(value, dict):
        scribble(tuple(value.values()))
    elif isinstance(value, tuple):
        for part in value:
            scribble(part)


class HoldingEnv(EchoEnv):
    """Environment that stores its actions without copying them."""

    def __init__(self):
        super().__init__(PLAIN, spaces.Box(-1, 9, (2,)))
        self.held = []

    def step(self, action):
        self.held.append(action)
        return super().step(np.int64(0))


class ScriptedEnv(gymnasium.Env):
    """Environment that returns given results, by default plain ones."""

    def __init__(self, steps=({},), resets=({},), observation_space=PLAIN, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.steps_ever = 0
        self.resets_ever = 0
        self.script = steps
        self.resets = resets

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        result = self.resets[self.resets_ever % len(self.resets)]
        self.resets_ever += 1
        return (np.zeros(2, np.float32), result) if isinstance(result, dict) else told(result)

    def step(self, action):
        result = self.script[self.steps_ever % len(self.script)]
        self.steps_ever += 1
        return plain_step(info=result) if isinstance(result, dict) else told(result)


def plain_step(observation=None, reward=0.0, terminated=False, truncated=False, info=None):
    """Return a result for ``step`` of a :class:`ScriptedEnv`."""
    observation = np.zeros(2, np.float32) if observation is None else observation
    return observation, reward, terminated, truncated, {} if info is None else info


def told(result):
    if isinstance(result, BaseException):
        raise result
    return result


class Lazy:
    """An object that creates its array on conversion, like LazyFrames."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class LazyOfOld(Lazy):
    """The same with the signature from before NumPy 2, as in XuanCe."""

    def __array__(self, dtype=None):
        return super().__array__(dtype)


class Level(enum.IntEnum):
    """An int subclass that is not exactly ``int``."""

    LOW = 1


class FailingEnv(ReusingEnv):
    """Environment that raises an exception in a given operation."""

    def __init__(self, command, make_error=lambda: ValueError("as told")):
        super().__init__(lengths=(2,))
        self.command = command
        self.make_error = make_error
        self.fail_at("construct")

    def fail_at(self, command):
        if command == self.command:
            raise self.make_error()

    def reset(self, *, seed=None, options=None):
        self.fail_at("reset")
        if self.steps_ever:
            self.fail_at("auto-reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.fail_at("step")
        return super().step(action)

    def render(self):
        self.fail_at("render")
        return np.zeros((1, 1, 3), np.uint8)

    def method(self):
        self.fail_at("call")
        return "called"

    @property
    def attribute(self):
        self.fail_at("get_attr")
        return "read"

    @property
    def writable(self):
        return "before"

    @writable.setter
    def writable(self, value):
        self.fail_at("set_attr")

    def close(self):
        self.fail_at("close")


class ClosingEnv(ReusingEnv):
    """Environment that creates a file on construction and on ``close``, which must come once."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.note("made")

    def close(self):
        self.note("closed")

    def note(self, what):
        with open(f"{self.path}.{what}", "x", encoding="utf-8"):
            pass


class OwnError(Exception):
    """An exception with its own state, whose class only the environments' module defines."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class UnpicklableError(Exception):
    """An exception that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("not to be pickled")


class UnloadableError(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class DuckEnv:
    """An environment with spaces, ``reset``, ``step`` and ``render``, but not ``gymnasium.Env``."""

    def __init__(self):
        self.observation_space = PLAIN
        self.action_space = spaces.Discrete(2)

    def reset(self):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}

    def render(self, mode="human"):
        return f"rendered as {mode}"


class XuanceEnv(DuckEnv):
    """Environment that renders only with a mode, like XuanCe's Gym_Env."""

    def render(self, mode):
        return f"rendered as {mode}"


class XuanceAtariEnv(DuckEnv):
    """Environment with a different name for the render mode, like XuanCe's Atari_Env."""

    def render(self, render_mode):
        return f"rendered as {render_mode}"


def duck_without(name):
    """Return a :class:`DuckEnv` without one of its attributes."""
    env = DuckEnv()
    setattr(env, name, None)
    return env


class NamedEnv(gymnasium.Env):
    """Environment with a name, state to call, read and set, render modes and a step limit."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, name=None, max_episode_steps=None):
        self.observation_space = PLAIN
        self.action_space = spaces.Discrete(2)
        self.render_mode = "rgb_array"
        self.name = name
        if max_episode_steps is not None:
            self.max_episode_steps = max_episode_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}

    def render(self):
        return np.full((2, 2, 3), self.name, np.uint8)

    def make_lock(self):
        return threading.Lock()

    def describe(self, greeting, *, mark="."):
        return f"{greeting} {self.name}{mark}"


class Wrapped(gymnasium.Wrapper):
    """A wrapper with its own attribute and method."""

    def __init__(self, env):
        super().__init__(env)
        self.layer = "wrapper"

    def describe_layer(self):
        return f"{self.layer} of {self.unwrapped.name}"


def wrapped(name):
    """Return a :class:`NamedEnv` in three wrappers, the middle one a :class:`Wrapped`."""
    return TimeLimit(Wrapped(OrderEnforcing(NamedEnv(name))), 50)


class TalliedEnv(gymnasium.Env):
    """Environment that observes counts of all its operations; its seed determines its episodes.

    An episode takes 1 to 4 steps. Further steps report the end again.
    """

    FAIL = 7
    """The action that raises."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, name=0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float64)
        self.action_space = spaces.Discrete(self.FAIL + 1)
        self.render_mode = "rgb_array"
        self.name = name
        self.level = 0
        self.resets = self.steps = self.length = self.touched = self.frames = 0
        self.random = np.random.default_rng(name)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options and options.get("fail") == self.name:
            raise ZeroDivisionError("as told")
        if seed is not None:
            self.random = np.random.default_rng(seed)
            self.resets = 0
        self.resets += 1
        self.steps = 0
        self.length = int(self.random.integers(1, 5))
        return self.observe(), {"resets": self.resets, "options": repr(options)}

    def step(self, action):
        if action == self.FAIL:
            raise ZeroDivisionError("as told")
        self.steps += 1
        observation = self.observe(action)
        ended = self.steps >= self.length
        truncated = ended and bool(self.random.random() < 0.5)
        terminated = ended and (not truncated or bool(self.random.random() < 0.5))
        info = [
            {},
            {"steps": self.steps, "half": self.steps / 2},
            {"steps": self.steps, "level": repr(self.level)},
            {"list": [self.steps, self.touched], "ended": ended},
        ][(self.steps + self.name) % 4]
        return observation, self.steps / 4, terminated, truncated, info

    def observe(self, action=-1):
        done = [self.name, self.resets, self.steps, self.touched, action]
        return np.array([*done, self.random.random()])

    def render(self):
        self.frames += 1
        return np.full((2, 2, 3), 16 * self.name + self.frames % 16, np.uint8)

    @property
    def doubled(self):
        return 2 * self.touched

    def touch(self, by=1):
        self.touched += by
        return self.name, self.touched

    def describe(self, greeting, *, mark="."):
        return f"{greeting} {self.name}, {self.level}{mark}"

    def fail_if(self, name):
        if self.name == name:
            raise ZeroDivisionError("as told")


class CountedEnv(gymnasium.Env):
    """Environment that observes its total resets and steps, and its steps since the last reset."""

    def __init__(self, number=0, length=2):
        self.observation_space = spaces.Box(0, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.number = number
        self.length = length
        self.resets = self.steps = self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.count = 0
        return self.observe(), {"resets": self.resets}

    def step(self, action):
        self.steps += 1
        self.count += 1
        ended = self.count >= self.length
        info = {"steps": self.steps} if self.count % 2 else {"text": f"{self.steps} steps"}
        truncated = ended and self.resets % 2 == 0
        return self.observe(), float(self.steps), ended and not truncated, truncated, info

    def observe(self):
        return np.array([self.resets, self.steps, self.count], np.float64)

    def counts(self):
        return self.steps, self.resets


class InterruptingEnv(ReusingEnv):
    """Environment that sends SIGINT once, in the operation it is ``armed`` for: step or reset."""

    def __init__(self, pid):
        super().__init__()
        self.pid = pid
        self.armed = ""

    def step(self, action):
        self.interrupt_if_armed("step")
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.interrupt_if_armed("reset")
        return super().reset(seed=seed)

    def interrupt_if_armed(self, command):
        if self.armed == command:
            self.armed = ""
            os.kill(self.pid, signal.SIGINT)


class UncopyableEnv(gymnasium.Env):
    """Environment that returns a new lock in every step, which cannot be copied."""

    action_space = spaces.Discrete(2)

    def __init__(self):
        self.observation_space = CustomSpace()

    def reset(self, *, seed=None, options=None):
        self.lock = threading.Lock()
        return self.lock, {}

    def step(self, action):
        self.lock = threading.Lock()
        return self.lock, 0.0, False, False, {}


class CustomSpace(spaces.Space):
    """A space unknown to Gymnasium: integers as strings of x."""

    def sample(self, mask=None, probability=None):
        return "x" * int(self.np_random.integers(9))

    def contains(self, x):
        return isinstance(x, str) and set(x) <= {"x"}

    def __eq__(self, other):
        return isinstance(other, CustomSpace)

    __hash__ = None
