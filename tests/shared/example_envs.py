"""Environments to test with. Workers import them from here, so only numpy and gymnasium are used.

Each takes what it does from its arguments: a test shows what it is about where it makes one.
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


class ReusingEnv(gymnasium.Env):
    """Returns the same observation and info objects at every step, changed in place.

    Its observation is the number of the episode (from 1), the number of the step in it (from 0) and
    the last action. Its info has that very array, and the number of the step, which is also its
    reward.

    Args:
        lengths: how many steps its episodes take, in turn.
        endings: how they end, in turn: any of ``"terminated"``, ``"truncated"``, ``"both"``.
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
    """Has in its infos what cannot leave its process."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"lock": threading.Lock()}


class GraphReusingEnv(gymnasium.Env):
    """Shows the same graph at every step, changed in place."""

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
    """Shows samples of its observation space, and remembers the actions it received.

    Everything it draws is decided by its seed. It writes into the actions it received.

    Args:
        observation_space: of any kind.
        action_space: of any kind.
        length: how many steps an episode takes.
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
    """Writes into every array in a value."""
    if isinstance(value, np.ndarray):
        value[...] = 0
    elif isinstance(value, dict):
        scribble(tuple(value.values()))
    elif isinstance(value, tuple):
        for part in value:
            scribble(part)


class HoldingEnv(EchoEnv):
    """Keeps the actions it received, not copies of them."""

    def __init__(self):
        super().__init__(PLAIN, spaces.Box(-1, 9, (2,)))
        self.held = []

    def step(self, action):
        self.held.append(action)
        return super().step(np.int64(0))


class ScriptedEnv(gymnasium.Env):
    """Returns what it is told to, step by step; without a word about it, something plain.

    Args:
        steps: what ``step`` returns, in turn and over again. A dict stands for a plain step with
            that info, an exception is raised.
        resets: the same for ``reset``.
        observation_space: what it claims to show.
        action_space: what it claims to take.
    """

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
    """What ``step`` of a :class:`ScriptedEnv` may return."""
    observation = np.zeros(2, np.float32) if observation is None else observation
    return observation, reward, terminated, truncated, {} if info is None else info


def told(result):
    if isinstance(result, BaseException):
        raise result
    return result


class Lazy:
    """Makes its array when asked, as LazyFrames do."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class LazyOfOld(Lazy):
    """The same, as XuanCe has it, from before NumPy 2."""

    def __array__(self, dtype=None):
        return super().__array__(dtype)


class Level(enum.IntEnum):
    """Counts as an int, but is none."""

    LOW = 1


class FailingEnv(ReusingEnv):
    """Raises an exception when it is asked to do a certain thing.

    Args:
        command: ``"construct"``, ``"reset"``, ``"auto-reset"``, ``"step"``, ``"render"``,
            ``"call"``, ``"get_attr"``, ``"set_attr"`` or ``"close"``; anything else never fails.
        make_error: makes the exception.
    """

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
    """Leaves a note when it is made, and when it is closed, which it may be only once.

    Args:
        path: where, without the ending: ``.made`` or ``.closed``.
    """

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
    """An exception that only the environments' module knows, with state of its own."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class UnpicklableError(Exception):
    """An exception that cannot be sent anywhere."""

    def __reduce__(self):
        raise TypeError("not to be pickled")


class UnloadableError(Exception):
    """An exception that can be pickled, but not be made again from its pickle."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class DuckEnv:
    """An environment that is no ``gymnasium.Env``: two spaces, ``reset``, ``step``, ``render``."""

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
    """Renders as XuanCe's Gym_Env does: only when it is given a mode."""

    def render(self, mode):
        return f"rendered as {mode}"


class XuanceAtariEnv(DuckEnv):
    """Renders as XuanCe's Atari_Env does, which has another name for the mode."""

    def render(self, render_mode):
        return f"rendered as {render_mode}"


def duck_without(name):
    """A :class:`DuckEnv` that lacks something."""
    env = DuckEnv()
    setattr(env, name, None)
    return env


class NamedEnv(gymnasium.Env):
    """Has a name and some state to call, read and set; states its modes and its step limit.

    Args:
        name: anything.
        max_episode_steps: what it states, unless None.
    """

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
    """A wrapper with an attribute and a method of its own."""

    def __init__(self, env):
        super().__init__(env)
        self.layer = "wrapper"

    def describe_layer(self):
        return f"{self.layer} of {self.unwrapped.name}"


def wrapped(name):
    """A :class:`NamedEnv` within three wrappers, the middle one a :class:`Wrapped`."""
    return TimeLimit(Wrapped(OrderEnforcing(NamedEnv(name))), 50)


class TalliedEnv(gymnasium.Env):
    """Shows how often each thing was done to it; how its episodes go is decided by its seed.

    An episode takes 1 to 4 steps. Stepped beyond its end, it says again that it ended.

    Args:
        name: a number to tell it by, which decides until a seed does.
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
    """Observes how often it was reset and stepped, ever, and how often since its last reset.

    Args:
        number: a number to tell it by.
        length: the steps of an episode; the steps beyond also say that it has ended.
    """

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
    """Sends a process Ctrl-C, once, when it does what it is ``armed`` for: a step, or a reset.

    Args:
        pid: the process.
    """

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
    """Shows another lock at every step, which nobody can copy."""

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
    """A space Gymnasium knows nothing of: whole numbers as strings of x."""

    def sample(self, mask=None, probability=None):
        return "x" * int(self.np_random.integers(9))

    def contains(self, x):
        return isinstance(x, str) and set(x) <= {"x"}

    def __eq__(self, other):
        return isinstance(other, CustomSpace)

    __hash__ = None
