"""Objects outside the environment that it also holds: restored as the same object, or refused."""

from __future__ import annotations

import copyreg
import functools
import random
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scripts import run_script

from xuance_envs import DummyVecEnv, StateMismatchError, check_saving
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError


class Base(gymnasium.Env):  # type: ignore[type-arg]
    """Calls ``begin`` at each reset and returns the numbers of ``look`` at each step."""

    observation_space = spaces.Box(-1e12, 1e12, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
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


# -- objects that stay the same ---------------------------------------------------------------


class Phase:
    """An enum as some write it; its members are compared with ``is``."""

    IDLE: Any
    BUSY: Any

    def __init__(self, name: str) -> None:
        self.name = name


Phase.IDLE, Phase.BUSY = Phase("idle"), Phase("busy")
NORTH, SOUTH = Phase("north"), Phase("south")


class Enumerations(Base):
    def begin(self) -> None:
        self.phase, self.heading = Phase.IDLE, NORTH

    def look(self, action: int) -> float:
        value = 2 * (self.phase is Phase.IDLE) + 4 * (self.heading is NORTH)
        value += 8 * (self.phase is Phase.BUSY) + 16 * (self.heading is SOUTH)
        self.phase = (Phase.IDLE, Phase.BUSY, Phase.BUSY)[action]
        self.heading = (SOUTH, NORTH, SOUTH)[action]
        return value


class Room:
    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self.next: Any = None


HALL, CELL = Room((3, 4)), Room((1, 1))
HALL.next, CELL.next = CELL, HALL


class WalksThroughRooms(Base):
    def begin(self) -> None:
        self.room = HALL

    def look(self, action: int) -> float:
        self.room = self.room.next if action else self.room
        return (self.room is HALL) + 2 * self.room.size[0]


class Task:
    def __init__(self, gain: float) -> None:
        self.gain = gain


class PicksTask(Base):
    """Finds its task in a list of all by identity."""

    TASKS = [Task(1.0), Task(2.0), Task(3.0)]  # noqa: RUF012
    BY_NAME: ClassVar = {"low": Task(5.0), "high": Task(6.0)}

    def begin(self) -> None:
        self.task = self.TASKS[int(self.np_random.integers(3))]
        self.other = self.BY_NAME["low" if self.np_random.random() < 0.5 else "high"]

    def look(self, action: int) -> float:
        low = self.other is self.BY_NAME["low"]
        return self.task.gain * action + 10 * self.TASKS.index(self.task) + 100 * low


class Piece:
    """A flyweight: one object for each name."""

    made: ClassVar[dict[str, Piece]] = {}

    def __new__(cls, name: str) -> Piece:
        if name not in cls.made:
            cls.made[name] = super().__new__(cls)
            cls.made[name].name = name
        return cls.made[name]

    name: str

    def __getnewargs__(self) -> Any:
        return (self.name,)


class Interned:
    made: ClassVar[dict[int, Interned]] = {}

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def of(cls, number: int) -> Interned:
        return cls.made.setdefault(number, cls(number))

    def __reduce__(self) -> Any:
        return Interned.of, (self.number,)


class Flyweights(Base):
    def begin(self) -> None:
        self.board = [Piece("king"), Piece("pawn"), Piece("king")]
        self.numbers = [Interned.of(3), Interned.of(4)]

    def look(self, action: int) -> float:
        value = (self.board[0] is self.board[2]) + 2 * (self.board[0] is Piece("king"))
        value += 4 * (self.numbers[0] is Interned.of(3))
        self.board[1] = self.board[action]
        return value + 10 * len(self.board[1].name)


@pytest.mark.parametrize("kind", [Enumerations, WalksThroughRooms, PicksTask, Flyweights])
def test_it_goes_on_with_the_same_objects(kind: Any) -> None:
    check_saving(kind, steps=25)


# -- objects that a load must not change ------------------------------------------------------


class Singleton:
    made: Any = None
    count: int

    def __new__(cls) -> Any:
        if cls.made is None:
            cls.made = super().__new__(cls)
            cls.made.count = 0
        return cls.made


class Settings:
    made: Any = None

    def __init__(self) -> None:
        self.count = 0

    @classmethod
    def get(cls) -> Any:
        cls.made = cls.made or cls()
        return cls.made


class Counter:
    """Restored by a function that returns the same object for the same name."""

    made: ClassVar[dict[str, Counter]] = {}

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    @classmethod
    def of(cls, name: str) -> Counter:
        if name not in cls.made:
            cls.made[name] = cls(name)
        return cls.made[name]


copyreg.pickle(Counter, lambda counter: (Counter.of, (counter.name,), {"count": counter.count}))


class OncePerClass(type):
    made: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *given: Any) -> Any:
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*given)
        return cls.made[cls]


class Once(metaclass=OncePerClass):
    def __init__(self) -> None:
        self.count = 0


MADE: dict[Any, Any] = {}


def once(kind: Any) -> Any:
    def get() -> Any:
        if kind not in MADE:
            MADE[kind] = kind()
        return MADE[kind]

    return get


@once
class Decorated:
    def __init__(self) -> None:
        self.count = 0


SERVICE = Settings()
TABLE = {"count": 0}
RANDOM = random.Random(3)
SPACE = spaces.Discrete(100)


class Holds(Base):
    """Holds an object that others count with, too."""

    find: Any = None

    def begin(self) -> None:
        self.held = type(self).find()

    def look(self, action: int) -> float:
        self.held.count += 1
        return float(self.held.count + 10 * type(self).find().count)


class HoldsSingleton(Holds):
    find = Singleton


class HoldsSettings(Holds):
    find = staticmethod(lambda: Settings.get())


class HoldsCounter(Holds):
    find = staticmethod(lambda: Counter.of("a"))


class HoldsOnce(Holds):
    find = Once


class HoldsDecorated(Holds):
    find = staticmethod(lambda: Decorated())


class HoldsService(Holds):
    find = staticmethod(lambda: SERVICE)


class CountsInTable(Base):
    def look(self, action: int) -> float:
        TABLE["count"] += 1
        return TABLE["count"]


class DrawsFromModule(Base):
    def look(self, action: int) -> float:
        return RANDOM.random()


class SamplesModuleSpace(Base):
    def look(self, action: int) -> float:
        return float(SPACE.sample())


class SamplesClassSpace(Base):
    action_space = spaces.Discrete(3)

    def look(self, action: int) -> float:
        return float(self.action_space.sample())


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (HoldsSingleton, r"Singleton object, which exists already: \['count'\]: 1 .* 2 here"),
        (HoldsSettings, r"Settings object, which exists already: \['count'\]: 1 .* 2 here"),
        (HoldsCounter, r"Counter object, which exists already: \['count'\]: 1 .* 2 here"),
        (HoldsOnce, r"Once object, which exists already: \['count'\]: 1 .* 2 here"),
        (HoldsDecorated, r"Decorated object, which exists already: \['count'\]: 1 .* 2 here"),
        (HoldsService, r"module variable's content: .*\.SERVICE"),
        (DrawsFromModule, r"module variable's content: .*\.RANDOM"),
        (SamplesModuleSpace, r"module variable's content: .*\.SPACE"),
        (SamplesClassSpace, r"class attribute: SamplesClassSpace\.action_space"),
    ],
)
def test_a_load_that_would_change_them_is_refused_and_changes_nothing(kind: Any, what: str) -> None:
    with DummyVecEnv([kind]) as envs:
        envs.reset(seed=1)
        envs.step([1])
        held = getattr(envs.envs[0], "held", None)
        if held is not None:
            held.count = 1
        state = envs.save_state()
        envs.load_state(state)  # nothing has changed
        envs.step([1])
        with pytest.raises(StateMismatchError, match=what):
            envs.load_state(state)
        if held is not None:
            assert held.count == 2
            assert envs.envs[0].held is held


def test_a_load_warns_of_a_changed_table_which_may_be_a_cache() -> None:
    with DummyVecEnv([CountsInTable]) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        envs.load_state(state)  # nothing has changed
        envs.step([1])
        with pytest.warns(UserWarning, match=r"table: .*\.TABLE: {'count': \d+} when .* a cache"):
            envs.load_state(state)


SCRIPT = """
    import functools, logging, os, re
    import gymnasium, numpy as np
    from gymnasium import spaces
    from xuance_envs import DummyVecEnv, SubprocVecEnv

    LOG, SURROUNDINGS, PATTERN = logging.getLogger(__name__), os.environ, re.compile("a+")
    WORDS, TABLE = {"alpha", "beta", "gamma"}, {(-1, 0): 1, None: np.arange(5)}
    RULES = {}

    def rule(function):
        RULES[function.__name__] = function
        return function

    @rule
    def double(value): return 2 * value

    @rule
    def square(value): return value * value

    OPERATIONS = {"negative": lambda value: -value, "partial": functools.partial(double)}

    class Room:
        def __init__(self, size): self.size, self.next = size, None

    HALL, CELL = Room(3), Room(1)
    HALL.next, CELL.next = CELL, HALL

    class Env(gymnasium.Env):
        observation_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.room = HALL
            return np.zeros(1), {}

        def step(self, action):
            LOG.debug("%s", SURROUNDINGS.get("x"))
            self.room = self.room.next if action else self.room
            value = RULES["double"](self.room.size) + RULES["square"](TABLE[None][3]) + len(WORDS)
            value += OPERATIONS["negative"](1) + OPERATIONS["partial"](2)
            value += bool(PATTERN.match("a")) + (self.room is HALL) + self.np_random.random()
            return np.array([value]), value, False, False, {}

    actions = [[int(each)] for each in np.random.default_rng(0).integers(2, size=20)]
    with DummyVecEnv([Env]) as here, SubprocVecEnv([Env], context="forkserver") as worker:
        for one, other in (here, worker), (worker, here):
            one.reset(seed=1)
            other.reset(seed=2)
            one.step([1])
            state = one.save_state()
            expected = [one.step(each)[1].tolist() for each in actions]
            other.load_state(state)
            assert [other.step(each)[1].tolist() for each in actions] == expected
"""


def test_module_variables_of_a_script_are_the_same_in_workers(tmp_path: Path) -> None:
    run_script(tmp_path, SCRIPT)


class Token:
    """Two become one if nothing remembers the name of the second."""

    made: ClassVar[dict[str, Token]] = {}
    name: str

    def __new__(cls, name: str) -> Token:
        return cls.made.setdefault(name, super().__new__(cls))

    def __getnewargs__(self) -> Any:
        return (self.name,)


class HoldsTokens(Base):
    def begin(self) -> None:
        self.tokens = []
        for _ in range(2):
            Token.made.clear()
            token = Token("a")
            token.name = "a"
            self.tokens.append(token)

    def look(self, action: int) -> float:
        return self.tokens[0] is self.tokens[1]


def test_two_objects_do_not_become_one() -> None:
    env, twin = HoldsTokens(), HoldsTokens()
    for each in (env, twin):
        each.reset(seed=1)
    data = EnvCheckpointer(env).save()
    with pytest.raises(FaultError, match=r"two .*Token objects would become the same object"):
        EnvCheckpointer(twin).prepare(data, trusted=True)


@functools.lru_cache
def made_once(gain: float) -> Task:
    return Task(gain)


class UsesCache(Base):
    def look(self, action: int) -> float:
        return made_once(action).gain


def test_caches_of_functions_are_named() -> None:
    (found,) = check_saving(UsesCache, steps=5)
    assert found == f"module variable: {__name__}.made_once: functools.lru_cache"
