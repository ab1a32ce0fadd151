"""What environments hold is restored exactly, or refused by its path: never kept silently."""

from __future__ import annotations

import argparse
import ctypes
import enum
import functools
import importlib
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs import (
    DummyVecEnv,
    StateError,
    StateMismatchError,
    SubprocVecEnv,
    check_saving,
    register_state,
)
from xuance_envs.file_commands import run_state
from xuance_envs.state.checkpointer import EnvCheckpointer


class Base(gymnasium.Env):  # type: ignore[type-arg]
    """Calls ``begin`` at each reset and returns the numbers of ``look`` at each step."""

    observation_space = spaces.Box(-1e12, 1e12, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.steps = 0
        self.begin()
        return np.zeros(1), {}

    def begin(self) -> None:
        pass

    def look(self, action: int) -> float:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        self.steps += 1
        value = float(self.look(int(action)))
        return np.array([value]), value, self.steps == 9, False, {}


def played(env: Any, steps: int, seed: int = 0) -> list[float]:
    """Return the rewards of some steps."""
    actions = np.random.default_rng(seed).integers(3, size=steps)
    rewards = []
    for action in actions:
        _, reward, ended, *_ = env.step(action)
        rewards.append(reward)
        if ended:
            env.reset()
    return rewards


def loaded(make: Callable[[], Any], before: int = 5) -> tuple[Any, Any]:
    """Return an environment and another one that its state was loaded into."""
    env, twin = make(), make()
    env.reset(seed=1)
    twin.reset(seed=2)
    played(env, before)
    played(twin, 2, seed=1)
    EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=True).apply()
    return env, twin


def assert_goes_on(make: Callable[[], Any]) -> None:
    """Check that an environment goes on exactly, before and after an end, and again."""
    for before in (0, 1, 5, 9, 14):
        env, twin = loaded(make, before)
        assert played(twin, 30) == played(env, 30)
        EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=True).apply()
        assert played(twin, 12, seed=3) == played(env, 12, seed=3)
    check_saving(make, steps=25)


# -- methods of builtins, and partials --------------------------------------------------------


class BuiltinMethods(Base):
    def begin(self) -> None:
        self.draw = random.Random(int(self.np_random.integers(1000))).random
        self.queue: deque[int] = deque(maxlen=3)
        self.append = self.queue.append

    def look(self, action: int) -> float:
        self.append(action)
        return self.draw() + sum(self.queue)


class Partials(Base):
    def begin(self) -> None:
        rng = np.random.default_rng(int(self.np_random.integers(1000)))
        self.noise = functools.partial(rng.normal, 0, scale=self.np_random.random())
        self.rng = rng

    def look(self, action: int) -> float:
        return self.noise() + self.rng.random()


class BaseMethods(Base):
    """Holds the method of a base class that its own class overrides, and a private one."""

    def begin(self) -> None:
        self.hold = super().look_up if self.np_random.random() < 0.5 else self.__private

    def look_up(self) -> float:
        return 5.0

    def __private(self) -> float:
        return self.steps

    def look(self, action: int) -> float:
        return self.hold()


Base.look_up = lambda self: 7.0 + self.steps  # type: ignore[attr-defined]


# -- functions --------------------------------------------------------------------------------


class TwoLambdas(Base):
    def begin(self) -> None:
        if self.np_random.random() < 0.5:
            self.reward = lambda action: action + 1
        else:
            self.reward = lambda action: action + 2

    def look(self, action: int) -> float:
        return self.reward(action)


def counting(start: float) -> dict[str, Any]:
    count = start

    def add(value: float) -> None:
        nonlocal count
        count += value

    def read() -> float:
        return count

    return {"add": add, "read": read}


class Closures(Base):
    """Domain randomization by closures in containers, which share a variable."""

    def begin(self) -> None:
        gain, lock = self.np_random.random(), threading.Lock()

        def scaled(action: int, seen: list[int] = []) -> float:  # noqa: B006
            with lock:
                seen.append(action)
                return action * gain + len(seen)

        self.ways = [counting(gain), {"scaled": scaled}]
        self.read = self.ways[0]["read"]
        self.by_default = lambda action, gain=gain, *, more=gain * 2: action * gain + more

    def look(self, action: int) -> float:
        self.ways[0]["add"](action)
        return self.ways[1]["scaled"](action) + self.read() + self.by_default(action)


class FunctionAttributes(Base):
    def __init__(self) -> None:
        def count(action: int) -> float:
            count.calls += 1  # type: ignore[attr-defined]
            return count.calls + action  # type: ignore[attr-defined]

        count.calls = 0  # type: ignore[attr-defined]
        self.count = count

    def look(self, action: int) -> float:
        return self.count(action)


def double(value: float) -> float:
    return 2 * value


def triple(value: float) -> float:
    return 3 * value


class ModuleFunctions(Base):
    """Picks one of the functions of a module, which stays that very function."""

    def begin(self) -> None:
        self.pick = double if self.np_random.random() < 0.5 else triple

    def look(self, action: int) -> float:
        return self.pick(action) + (self.pick is double)


class RecursiveFunction(Base):
    def __init__(self) -> None:
        total = 0.0

        def down(n: int) -> float:
            nonlocal total
            total += n
            return total if n == 0 else down(n - 1)

        self.down = down

    def look(self, action: int) -> float:
        return self.down(action)


# -- events, and counters in classes ----------------------------------------------------------


class Events(Base):
    def __init__(self) -> None:
        self.alarm = threading.Event()
        self.slots = threading.Semaphore(5)
        self.condition = threading.Condition()

    def begin(self) -> None:
        self.alarm.clear()

    def look(self, action: int) -> float:
        if action == 2:
            self.alarm.set()
            self.slots.acquire(timeout=0.001)
        with self.condition:
            return self.alarm.is_set() + 10 * self.slots._value  # type: ignore[attr-defined]


class Helper:
    count = 0

    def use(self) -> int:
        Helper.count += 1
        return Helper.count


class CountsInHelper(Base):
    def __init__(self) -> None:
        self.parts = [Helper()]

    def look(self, action: int) -> float:
        return self.parts[0].use()


# -- arrays -----------------------------------------------------------------------------------


class Labelled(np.ndarray):  # type: ignore[type-arg]
    """Array with attributes, of which NumPy's pickles do not tell."""

    label = 0.0


class Views(Base):
    def __init__(self) -> None:
        self.table = np.zeros(4, [("x", "f8"), ("y", "i4"), ("z", "f4", (2,))])
        self.x, self.z = self.table["x"], self.table["z"]
        self.record = self.table[2]
        self.columns = np.zeros((3, 2), order="F")
        self.column = self.columns[1:, 1]
        self.turned = np.zeros((2, 3, 4)).transpose(1, 2, 0).copy(order="K")
        self.slice = self.turned[1, ::2]
        self.objects = np.array([[1.0, "a", None], [2.0, "b", self]], object)
        self.object_column = self.objects[:, 0]
        self.records = np.rec.array([(1.0, 2)], dtype=[("speed", "f8"), ("count", "i4")])
        self.speed = self.records.speed
        self.bytes = bytearray(16)
        self.from_bytes = np.frombuffer(self.bytes, np.float64)
        self.label = np.zeros(3).view(Labelled)
        self.part = self.label[1:]
        self.own = Labelled(3)
        self.own[:] = 0
        self.of_own = self.own[::-1]
        self.masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
        self.broadcast = np.broadcast_to(self.x[:1], (3,))
        self.windows = np.lib.stride_tricks.sliding_window_view(self.x, 2)
        self.read_only = self.columns[:, 0].view()
        self.read_only.flags.writeable = False

    def look(self, action: int) -> float:
        drawn = self.np_random.random()
        self.x += drawn
        self.z[action, 1] += 1
        self.record["y"] += action
        self.column[0] += drawn
        self.slice[0] += drawn
        self.object_column[1] += drawn
        self.speed += drawn
        self.from_bytes[action % 2] += drawn
        self.part[action % 2] += drawn
        self.part.label += 1
        self.of_own[0] += action
        self.masked[action] = drawn
        self.columns[0, 0] += 1
        sums = (
            self.table["x"].sum() + self.table["z"].sum() + self.table["y"].sum(),
            self.columns.sum() + self.turned.sum() + self.objects[1, 0] + self.records.speed[0],
            self.bytes[3] + self.label.sum() + self.part.label + self.own.sum(),
            self.masked.sum() + self.broadcast.sum() + self.read_only[0] + self.windows.sum(),
        )
        return sum(map(float, sums)) + (self.objects[1, 2] is self)


# -- generators -------------------------------------------------------------------------------


class OneStream(Base):
    def __init__(self) -> None:
        self.bits = np.random.MT19937(3)
        self.old, self.new = np.random.RandomState(self.bits), np.random.Generator(self.bits)
        self.pcg = np.random.RandomState(np.random.PCG64(4))
        self.gauss = np.random.RandomState(5)
        self.gauss.standard_normal()

    def look(self, action: int) -> float:
        first = self.old.random_sample() if action else self.new.random()
        return first + self.pcg.random_sample() + self.gauss.standard_normal()


# -- objects with hooks -----------------------------------------------------------------------


class Pump:
    """Cannot be pickled, and saves itself."""

    def __init__(self, number: float) -> None:
        self.handle, self.pressure = (each for each in ()), number

    def __env_state__(self) -> Any:
        return self.pressure

    def __set_env_state__(self, value: Any) -> None:
        self.pressure = value

    def push(self, action: int) -> float:
        self.pressure += action
        return self.pressure


class Valve:
    """Cannot be pickled either; its class is registered."""

    def __init__(self) -> None:
        self.handle, self.turns = (each for each in ()), 0


register_state(
    Valve, lambda valve: valve.turns, lambda valve, turns: setattr(valve, "turns", turns)
)


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class Hooks(Base):
    def __init__(self) -> None:
        self.pumps = [Pump(0.0), Pump(100.0)]
        self.by_name = {"valve": Valve(), ("a", 1): Holder(Pump(3.0))}
        self.current = self.pumps[0]
        self.push = self.pumps[0].push

    def begin(self) -> None:
        self.current = self.pumps[int(self.np_random.integers(2))]
        self.push = self.current.push

    def look(self, action: int) -> float:
        self.by_name["valve"].turns += 1
        inner = self.by_name["a", 1].held.push(action)
        turns = self.by_name["valve"].turns
        return self.current.push(action) + self.push(1) + inner + turns


class Task:
    def __init__(self, gain: float) -> None:
        self.reward = lambda action: action * gain
        self.env_lock, self.uses = threading.Lock(), 0


class Tasks(Base):
    """Picks one of its task objects at reset."""

    def __init__(self) -> None:
        self.tasks = {"easy": Task(1.0), "hard": Task(5.0)}

    def begin(self) -> None:
        self.task = self.tasks["easy" if self.np_random.random() < 0.5 else "hard"]

    def look(self, action: int) -> float:
        self.task.uses += 1
        return self.task.reward(action) + sum(task.uses for task in self.tasks.values())


class TorchArrays(Base):
    """Arrays and tensors in one memory, whose length differs between environments."""

    def __init__(self) -> None:
        torch = importlib.import_module("torch")
        self.tensor = torch.zeros(5)
        self.array = self.tensor.numpy()
        self.half = self.tensor[::2]
        self.alone = torch.zeros(4).numpy()

    def begin(self) -> None:
        torch = importlib.import_module("torch")
        self.tensor = torch.zeros(int(self.np_random.integers(3, 9)))
        self.array, self.half = self.tensor.numpy(), self.tensor[::2]

    def look(self, action: int) -> float:
        self.array[action] += 1
        self.half += 0.5
        self.alone[action] += 1
        return float(self.tensor.sum()) + float(self.array.sum()) + float(self.alone.sum())


class AttrDict(dict):  # type: ignore[type-arg]
    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


class SharesDict:
    """Borg: its instances have the same attributes."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.__dict__ = attributes


class AttributeDicts(Base):
    def begin(self) -> None:
        self.options = AttrDict(gain=1, seen=0)
        attributes = {"count": 0}
        self.one, self.other = SharesDict(attributes), SharesDict(attributes)
        self.holder = Holder(1.0)
        self.view = vars(self.holder)

    def look(self, action: int) -> float:
        self.options.gain += action
        self.options["seen"] += self.options["gain"]
        self.one.count += action  # type: ignore[attr-defined]
        self.view["held"] += action
        return self.options.seen + self.other.count + self.holder.held  # type: ignore[attr-defined]


NOTHING = object()


class Sentinels(Base):
    EMPTY = object()

    def begin(self) -> None:
        self.cells = [NOTHING, self.EMPTY, NOTHING]

    def look(self, action: int) -> float:
        result = sum(2 if cell is NOTHING else cell is self.EMPTY for cell in self.cells)
        self.cells[action] = NOTHING if self.steps % 2 else self.EMPTY
        return result


class RandomWithAttributes(Base):
    def begin(self) -> None:
        self.random: Any = random.Random(3)
        self.random.draws = 0

    def look(self, action: int) -> float:
        self.random.draws += action
        return float(self.random.random() + self.random.draws)


class IllegalMoveError(Exception):
    def __init__(self, player: str, place: int) -> None:
        super().__init__(f"{player} at {place}")
        self.place = place


class Exceptions(Base):
    def begin(self) -> None:
        self.last: Any = None

    def look(self, action: int) -> float:
        result = 0 if self.last is None else self.last.place + len(str(self.last.__cause__))
        try:
            raise IllegalMoveError("black", self.steps) from KeyError("x" * action)
        except IllegalMoveError as error:
            self.last = error
        return result


class DictIterators(Base):
    """Iterates over dicts whose values change."""

    def begin(self) -> None:
        self.speeds = {number: number for number in range(12)}
        self.values, self.names = iter(self.speeds.values()), reversed(self.speeds)
        self.pairs = zip(self.speeds.items(), map(self.faster, self.speeds.values()), strict=False)

    def faster(self, speed: int) -> int:
        return speed + self.steps

    def look(self, action: int) -> float:
        self.speeds[(action + self.steps + 1) % 12] += 7
        (name, speed), faster = next(self.pairs)
        return next(self.values) + 100 * next(self.names) + 1000 * (name + speed + faster)


class Table:
    def __init__(self) -> None:
        self.__dict__.update({f"k{number}": number for number in range(10)})


class AttributeIterators(Base):
    """Iterates over the attributes of an object that lost one."""

    def begin(self) -> None:
        self.table = Table()
        del self.table.k0  # type: ignore[attr-defined]
        self.values = iter(vars(self.table).values())
        next(self.values)

    def look(self, action: int) -> float:
        return next(self.values, -1)


class Engine(dict):  # type: ignore[type-arg]
    """Has an environment's methods, and data besides attributes."""

    def reset(self) -> None:
        self["speed"] = 0

    def step(self, action: int) -> int:
        self["speed"] += action
        return int(self["speed"])


class Engines(Base):
    def __init__(self) -> None:
        self.engine = Engine()

    def begin(self) -> None:
        self.engine.reset()

    def look(self, action: int) -> float:
        return self.engine.step(action)


class OwnSpec(Base):
    """Uses names that Gymnasium and this package use for constants."""

    def begin(self) -> None:
        self.spec: Any = {"gain": self.np_random.random()}
        self._cached_spec = self._requested_actions = [self.np_random.random()]

    def look(self, action: int) -> float:
        self.spec["gain"] += action
        self._requested_actions.append(action)
        return float(self.spec["gain"] + sum(self._cached_spec))


EXACT = [
    *(Engines, OwnSpec),
    *(DictIterators, AttributeIterators),
    *(AttributeDicts, Sentinels, RandomWithAttributes, Exceptions),
    *(BuiltinMethods, Partials, BaseMethods),
    *(TwoLambdas, Closures, FunctionAttributes, ModuleFunctions, RecursiveFunction),
    *(Events, Views, OneStream, Hooks, Tasks),
]


@pytest.mark.parametrize("kind", EXACT)
def test_it_goes_on_exactly(kind: Any) -> None:
    assert_goes_on(kind)


def test_arrays_of_tensors_go_on_exactly() -> None:
    pytest.importorskip("torch")
    assert_goes_on(TorchArrays)


@pytest.mark.parametrize("kind", EXACT)
def test_it_goes_on_exactly_in_a_worker(kind: Any) -> None:
    actions = np.random.default_rng(0).integers(3, size=(30, 1))
    with (
        DummyVecEnv([kind]) as envs,
        SubprocVecEnv([kind], context="forkserver") as others,
    ):
        for one, other in ((envs, others), (others, envs)):
            one.reset(seed=1)
            other.reset(seed=2)
            for action in actions[:5]:
                one.step(action)
            other.step(actions[0])
            other.load_state(one.save_state())
            for action in actions:
                assert other.step(action)[1] == one.step(action)[1]
        envs.clone_state([0], [0])


def test_clones_do_not_share_objects_with_their_source() -> None:
    with DummyVecEnv([Hooks, Hooks]) as envs:
        envs.reset(seed=1)
        for _ in range(4):
            envs.step([1, 2])
        envs.clone_state([0], [1])
        one, other = (env.unwrapped for env in envs.envs)
        assert one.pumps[0] is not other.pumps[0]
        assert other.push.__self__ in other.pumps
        for _ in range(20):
            rewards = envs.step([1, 1])[1]
            assert rewards[0] == rewards[1]


def test_a_changed_class_attribute_is_named() -> None:
    env, twin = CountsInHelper(), CountsInHelper()
    for each in (env, twin):
        each.reset(seed=1)
    data = EnvCheckpointer(env).save()
    EnvCheckpointer(twin).prepare(data, trusted=True).apply()
    env.step(1)
    with pytest.raises(Exception, match=r"class attribute: Helper\.count: \d+ when it was saved"):
        EnvCheckpointer(twin).prepare(data, trusted=True)


class Made:
    """Nothing holds one while the environment is saved."""

    count = 0

    def __init__(self) -> None:
        Made.count += 1


class CountsElsewhere(Base):
    def look(self, action: int) -> float:
        return Made().count


class Tone(enum.Enum):
    LOUD = 1
    SOFT = 2


class ChangesMembers(Base):
    def begin(self) -> None:
        self.tone: Any = Tone.LOUD

    def look(self, action: int) -> float:
        self.tone.heard = getattr(self.tone, "heard", 0) + 1
        return float(self.tone.heard)


TOTAL = 0


class AssignsVariables(Base):
    def look(self, action: int) -> float:
        global TOTAL
        TOTAL += 1
        return TOTAL


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (CountsElsewhere, r"class attribute: Made\.count"),
        (ChangesMembers, r"class attribute: Tone\.LOUD"),
        (AssignsVariables, r"module variable: .*\.TOTAL"),
    ],
)
def test_what_a_process_remembers_is_compared(kind: Any, what: str) -> None:
    env, twin = kind(), kind()
    for each in (env, twin):
        each.reset(seed=1)
    env.step(1)
    data = EnvCheckpointer(env).save()
    EnvCheckpointer(twin).prepare(data, trusted=True).apply()
    env.step(1)
    with pytest.raises(Exception, match=what + ": .* when it was saved"):
        EnvCheckpointer(twin).prepare(data, trusted=True)


class Descriptor:
    """Keeps the values of all instances, which is not an attribute of any of them."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self.values.get(id(owner), 0.0)

    def __set__(self, owner: Any, value: float) -> None:
        self.values[id(owner)] = value


class Described(Base):
    speed = Descriptor()

    def look(self, action: int) -> float:
        self.speed += action
        return self.speed


def remembering(function: Any) -> Any:
    calls: list[int] = []

    def counted(self: Any, action: int) -> float:
        calls.append(action)
        return float(len(calls) + function(self, action))

    return counted


class Decorated(Base):
    @remembering
    def look(self, action: int) -> float:
        return action


@pytest.mark.parametrize(
    ("kind", "path"),
    [(Described, "Described.speed"), (Decorated, r"Decorated\.look\.<variable calls>")],
)
def test_what_classes_remember_is_refused(kind: Any, path: str) -> None:
    with DummyVecEnv([kind]) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        envs.step([1])
        with pytest.raises(StateMismatchError, match=path):
            envs.load_state(state)


def held(value: Any) -> type[Base]:
    class Holding(Base):
        def __init__(self) -> None:
            self.box = {"inner": [Holder(value)]}

        def look(self, action: int) -> float:
            return 1.0

    return Holding


def a_generator() -> Any:
    yield 1


def a_held_lock() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


def a_datagram_socket() -> Any:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def a_process() -> Any:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_generator, "a generator cannot be saved"),
        (a_held_lock, "a _thread.lock cannot be saved: it is held"),
        (
            lambda: threading.Thread(target=print),
            "a threading.Thread cannot be saved: a thread runs in one process",
        ),
        (threading.local, "a _thread._local cannot be saved"),
        (lambda: weakref.proxy(Made), "a weakref.*Proxy.* cannot be saved: its target"),
        (
            lambda: multiprocessing.Pipe()[0],
            r"a .*\.Connection cannot be saved: the state of its peer",
        ),
        (lambda: ctypes.pythonapi, "a ctypes.PyDLL cannot be saved: its library hides its state"),
        (a_datagram_socket, "a socket.socket cannot be saved: it may exchange data"),
        (a_process, "a subprocess.Popen cannot be saved: the state of its process"),
    ],
)
def test_anything_else_is_refused_by_its_path(make: Any, reason: str) -> None:
    with DummyVecEnv([held(make())]) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError, match=r"Holding\.box\['inner'\]\[0\]\.held: " + reason):
            envs.save_state()


class IsDict(Base, dict):  # type: ignore[type-arg,misc]
    def look(self, action: int) -> float:
        self["last"] = action
        return 0.0


def test_an_environment_with_data_besides_attributes_is_refused() -> None:
    with DummyVecEnv([IsDict, lambda: gymnasium.Wrapper(IsDict())]) as envs:
        envs.reset(seed=1)
        for env in (0, 1):
            with pytest.raises(StateError, match=r"IsDict: .*IsDict cannot be saved: its class"):
                envs.save_state([env])


class HoldsOwnDict(Base):
    def begin(self) -> None:
        self.view = vars(self)


class HoldsDictOfNamespace(Base):
    def begin(self) -> None:
        self.space = types.SimpleNamespace(view=1)
        self.view = vars(self.space)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (HoldsOwnDict, "view: .* it is the __dict__ of an environment"),
        (HoldsDictOfNamespace, "space: .* another value holds the __dict__"),
    ],
)
def test_attributes_that_would_not_stay_shared_are_refused(kind: Any, reason: str) -> None:
    with DummyVecEnv([kind]) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError, match=rf"{kind.__name__}\.{reason}"):
            envs.save_state()


class Widens(Base):
    def __init__(self) -> None:
        self.inner = spaces.Discrete(2)

    def look(self, action: int) -> float:
        self.inner.n += action
        return float(self.inner.n)


class WidensInPlace(Base):
    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (1,), np.float64)

    def look(self, action: int) -> float:
        self.observation_space.high += action
        return float(self.observation_space.high[0])


class Angry(Base):
    def look(self, action: int) -> float:
        return 2.0


class BecomesAngry(Base):
    def look(self, action: int) -> float:
        self.__class__ = Angry
        return 1.0


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Widens, "inner spaces"),
        (WidensInPlace, "observation space"),
        (BecomesAngry, "wrappers"),
    ],
)
def test_what_changes_after_a_state_was_saved_is_compared(kind: Any, what: str) -> None:
    with DummyVecEnv([kind]) as envs, DummyVecEnv([kind]) as others:
        for each in (envs, others):
            each.reset(seed=1)
            each.save_state()
        envs.step([2])
        with pytest.raises(StateMismatchError, match=what):
            others.load_state(envs.save_state())
        others.step([2])
        others.load_state(envs.save_state())


class Remembers(Base):
    def begin(self) -> None:
        self.helper = Cubes()

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def squared(self, action: int) -> float:
        return action**2.0

    def look(self, action: int) -> float:
        return self.squared(action) + self.helper.cubed(action)


class Cubes:
    @functools.cache  # noqa: B019
    def cubed(self, action: int) -> float:
        return action**3.0


def test_caches_of_methods_are_named() -> None:
    found = [f"{name}: functools.lru_cache" for name in ("Remembers.squared", "Cubes.cubed")]
    assert check_saving(Remembers, steps=20) == found


def test_no_search_for_shared_attributes_where_nothing_else_holds_them() -> None:
    env = Hooks()
    env.reset(seed=1)
    checkpointer = EnvCheckpointer(env)
    checkpointer.save()
    assert not checkpointer.plan.attributes_are_shared()


def test_memory_that_processes_share_is_refused() -> None:
    memory = shared_memory.SharedMemory(create=True, size=8)
    try:
        with DummyVecEnv([held(memory)]) as envs:
            envs.reset(seed=1)
            with pytest.raises(StateError, match="SharedMemory cannot be saved: other processes"):
                envs.save_state()
    finally:
        memory.close()
        memory.unlink()


def test_a_file_that_is_read_is_refused_and_one_that_is_written_is_kept(tmp_path: Any) -> None:
    path = tmp_path / "log"
    with path.open("w") as written, path.open() as read:
        with DummyVecEnv([held(written)]) as envs:
            envs.reset(seed=1)
            envs.load_state(envs.save_state())
        with DummyVecEnv([held(read)]) as envs:
            envs.reset(seed=1)
            with pytest.raises(StateError, match="its read position is unknown"):
                envs.save_state()


class OwnDirectory(Base):
    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory()

    def look(self, action: int) -> float:
        return float(action)


def test_environments_keep_their_own_directories() -> None:
    env, twin = OwnDirectory(), OwnDirectory()
    name = twin.directory.name
    EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=True).apply()
    env.directory.cleanup()
    assert twin.directory.name == name
    assert os.path.isdir(name)
    twin.directory.cleanup()


def test_kept_resources_are_named(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kind = held(threading.Lock())
    assert check_saving(kind, steps=3) == [
        "Holding.box['inner'][0].held: _thread.lock".replace("Holding", kind.__qualname__)
    ]
    with DummyVecEnv([kind]) as envs:
        envs.reset(seed=1)
        envs.save_state().save(tmp_path / "one.xenvs")
    run_state(argparse.Namespace(file=tmp_path / "one.xenvs"))
    assert "held: _thread.lock" in capsys.readouterr().out


# -- classes and constants that depend on the process -----------------------------------------


def made_in_a_function(words: list[str]) -> type[Base]:
    class Local(Base):
        names = frozenset(words)
        aliases: ClassVar[Any] = {"all": set(words), "none": set[str]()}

        def look(self, action: int) -> float:
            return len(self.names) + action + len(words) + self.np_random.random()

    return Local


def test_sets_and_local_classes_are_the_same_in_every_process() -> None:
    kind = made_in_a_function(["up", "down", "left", "right", "hold", "fire"])
    with (
        DummyVecEnv([kind] * 2) as envs,
        SubprocVecEnv([kind] * 2, context="spawn", in_series=1) as others,
    ):
        for one, other in ((envs, others), (others, envs)):
            one.reset(seed=1)
            other.reset(seed=4)
            other.load_state(one.save_state())
            for _ in range(12):
                assert list(other.step([1, 2])[1]) == list(one.step([1, 2])[1])
        others.clone_state([0], [1])
    other_kind = made_in_a_function(["up"])
    with DummyVecEnv([kind]) as envs, DummyVecEnv([other_kind]) as others:
        envs.reset(seed=1)
        others.reset(seed=1)
        with pytest.raises(StateMismatchError, match=r"class attribute: .*Local\.names"):
            others.load_state(envs.save_state())


def test_a_state_that_was_saved_once_is_accepted_again() -> None:
    def make() -> Any:
        env = gymnasium.make("Pendulum-v1", max_episode_steps=9)
        return gymnasium.wrappers.TimeAwareObservation(env)

    with DummyVecEnv([make]) as envs:
        envs.reset(seed=1)
        states = []
        for _ in range(3):
            states.append(envs.save_state())
            envs.load_state(states[-1])
            envs.step(np.zeros((1, 1), np.float32))
        for state in states:
            envs.load_state(state)


# -- nothing changes when a state is refused --------------------------------------------------


class Mapped(Base):
    """Holds arrays in memory that is not NumPy's, of the length of ``sizes``."""

    sizes: ClassVar[deque[int]] = deque()

    def __init__(self) -> None:
        self.total = 0.0
        self.fixed, self.mapped = mapped(2), mapped(self.sizes.popleft())

    def look(self, action: int) -> float:
        self.total += action
        self.mapped[0] += action
        self.fixed[1] += action
        return float(self.total + self.mapped.sum() + self.fixed.sum())


def mapped(size: int) -> Any:
    return np.frombuffer(importlib.import_module("mmap").mmap(-1, 8 * size), np.float64)


class Shaped(Base):
    def __init__(self, space: Any = spaces.Box(0, 1, (8,))) -> None:  # noqa: B008  # is compared
        self.shape = space.shape

    def look(self, action: int) -> float:
        return self.steps


def test_default_spaces_are_the_same_before_and_after_their_text_is_cached() -> None:
    with DummyVecEnv([Shaped]) as envs:
        envs.reset(seed=1)
        envs.load_state(envs.save_state())


class GrowingSpace(Base):
    """Adds a subspace to a space, and then draws from it."""

    def __init__(self) -> None:
        self.parts = spaces.Dict(a=spaces.Discrete(2))

    def look(self, action: int) -> float:
        if "b" not in self.parts.spaces:
            self.parts.spaces["b"] = spaces.Discrete(10**6, seed=5)
        return float(self.parts["b"].sample())


def test_subspaces_that_are_added_after_a_save_are_saved() -> None:
    with DummyVecEnv([GrowingSpace]) as envs:
        envs.reset(seed=1)
        envs.save_state()
        envs.step([0])
        state = envs.save_state()
        expected = envs.step([0])[1]
        envs.load_state(state)
        assert envs.step([0])[1] == expected


def test_a_refused_load_changes_nothing_and_closes_nothing() -> None:
    Mapped.sizes.extend([3, 3, 4])
    with DummyVecEnv([Mapped] * 2) as envs, DummyVecEnv([Mapped]) as longer:
        envs.reset(seed=1)
        longer.reset(seed=2)
        envs.step([1, 1])
        state = envs.save_state()
        expected = envs.step([2, 2])[1]
        envs.load_state(state)
        assert list(envs.step([2, 2])[1]) == list(expected)
        before = longer.step([2])[1][0]
        with pytest.raises(
            StateMismatchError, match="array that is stored in another library's memory"
        ):
            longer.load_state(state[0])
        assert longer.step([0])[1][0] == before  # and it is not closed


def test_an_array_that_cannot_be_written_is_refused_if_its_content_differs() -> None:
    Mapped.sizes.extend([3, 3])
    with DummyVecEnv([Mapped]) as envs, DummyVecEnv([Mapped]) as others:
        envs.reset(seed=1)
        others.reset(seed=1)
        others.envs[0].unwrapped.mapped.flags.writeable = False
        others.load_state(envs.save_state())
        envs.step([1])
        with pytest.raises(StateError, match=r"read-only array in .* differs from the saved one"):
            others.load_state(envs.save_state())
