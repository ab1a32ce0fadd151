"""What few environments hold: it goes on exactly, or there is an error that says why not."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle

from xuance_envs import DummyVecEnv, EnvStates, StateError, check_saving
from xuance_envs.state import rebuild
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError
from xuance_envs.state.unpickling import check_safe


class Phased(gymnasium.Env):  # type: ignore[type-arg]
    """Changes what it is from its third step on."""

    observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = spaces.Discrete(3)
    phases: tuple[Any, Any] = (None, None)

    def phase(self, number: int) -> None:
        self.current = self.phases[number]

    def value(self) -> float:
        return float(self.current(3))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.phase(0)
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            self.phase(1)
        seen = np.array([self.value(), self.np_random.random()])
        return seen, self.value(), self.steps == 11, False, {}


def double(value: Any) -> Any:
    return 2 * value


def triple(value: Any) -> Any:
    return 3 * value


class Functions(Phased):
    phases = double, triple


class Lambdas(Phased):
    def phase(self, number: int) -> None:
        if number:
            self.current = lambda value: value
        else:

            def first(value: Any) -> Any:
                return -value

            self.current = first


class InAList(Lambdas):
    def phase(self, number: int) -> None:
        super().phase(number)
        self.current = [self.current]

    def value(self) -> float:
        return float(self.current[0](3))


class Types(Phased):
    phases = int, complex

    def value(self) -> float:
        return float(self.current is int)


class Ufuncs(Phased):
    phases = np.negative, np.square


class Partials(Phased):
    phases = functools.partial(double), functools.partial(triple)


class Methods(Phased):
    def phase(self, number: int) -> None:
        self.current = self.up if number else self.down

    def up(self, value: Any) -> Any:
        return value + self.steps

    def down(self, value: Any) -> Any:
        return value - self.steps


def after(make: Callable[[], Any], steps: int) -> Any:
    env = make()
    env.reset(seed=1)
    for _ in range(steps):
        env.step(1)
    return env


@pytest.mark.parametrize("kind", [Functions, Lambdas, InAList, Types, Partials])
def test_another_function_goes_on_or_needs_trust(kind: Any) -> None:
    with DummyVecEnv([kind]) as envs, DummyVecEnv([kind]) as other:
        envs.reset(seed=1)
        other.reset(seed=2)
        for _ in range(5):
            envs.step([1])
        state = envs.save_state()
        expected = [envs.step([1])[:2] for _ in range(9)]
        read = EnvStates.from_bytes(state.to_bytes())
        if kind is not Types:  # whose types are harmless
            with pytest.raises(StateError, match="has no function with this code"):
                other.load_state(read)
        other.load_state(state)
        for loaded in (state, read):  # it has that function by now
            other.load_state(loaded)
            for obs, rewards in expected:
                got = other.step([1])
                assert np.array_equal(got[0], obs)
                assert rewards == got[1]
            other.load_state(state)


@pytest.mark.parametrize("kind", [Methods, Ufuncs])
def test_methods_and_numpys_functions_are_state(kind: Any) -> None:
    check_saving(kind, steps=20)
    env, twin = after(kind, 5), after(kind, 1)
    EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=True).apply()
    assert twin.step(1)[1] == env.step(1)[1]


class Drawing(random.Random):
    """Counts, in an attribute that its pickles lack."""

    drawn = 0

    def random(self) -> float:
        self.drawn += 1
        return super().random()


class Part(EzPickle):
    """Its pickles make another one, from arguments."""

    def __init__(self, size: int = 2) -> None:
        EzPickle.__init__(self, size)
        self.size, self.held = size, [0.0] * size


class Composed(Phased):
    def __init__(self) -> None:
        self.draws = Drawing(3)
        self.parts = [Part(3)]
        self.inner = [gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")]

    def phase(self, number: int) -> None:
        for env in self.inner:
            env.reset(seed=number)

    def value(self) -> float:
        self.parts[0].held[self.steps % 3] += 1.0
        sums = [float(env.step(self.steps % 2)[0].sum()) for env in self.inner]
        return self.draws.random() + self.draws.drawn + sum(self.parts[0].held) + sum(sums)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of steps after an episode's end
def test_what_pickles_leave_out_is_kept() -> None:
    assert pickle.loads(pickle.dumps(Drawing(1))).drawn == 0
    check_saving(Composed, steps=25)
    env, twin = after(Composed, 7), after(Composed, 2)
    data = EnvCheckpointer(env).save()
    EnvCheckpointer(twin).prepare(data, trusted=True).apply()
    assert (twin.parts[0].held, twin.draws.drawn) == (env.parts[0].held, env.draws.drawn)
    assert type(twin.draws) is Drawing
    with pytest.raises(Exception, match="not on the list of safe classes"):
        EnvCheckpointer(twin).prepare(data, trusted=False)
    with pytest.raises(Exception, match="not on the list of safe classes"):
        check_safe(data)


class Meters(np.float64):
    """Of which NumPy's pickles do not tell."""


class OwnGenerator(np.random.Generator):
    """Of which NumPy's pickles do not tell."""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (OwnGenerator(np.random.PCG64(1)), "do not record subclasses"),
        (Meters(1), "do not record subclasses"),
        (threading.local(), "a _thread._local cannot be saved"),
        ((number for number in range(3)), "a generator cannot be saved"),
    ],
)
def test_what_cannot_be_saved_says_so(value: Any, reason: str) -> None:
    class Holding(Phased):
        def __init__(self) -> None:
            self.held = value

        phases = double, triple

    with DummyVecEnv([Holding]) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError, match=reason):
            envs.save_state()


@pytest.mark.parametrize("name", ["with_content", "with_arguments"])
def test_functions_and_partials_that_were_there_are_not_changed(name: str) -> None:
    """A hostile file cannot change an environment's functions while it is only read."""
    env = after(Partials, 1)
    env.way = lambda value, more=1: value + more
    env.made = env.current
    path = (0, "way" if name == "with_content" else "made")
    content = {
        "with_content": (("evil", "evil", "evil"), ((99,), None, None), ()),
        "with_arguments": ((99,), {}, None),
    }[name]

    class Where:
        def __reduce__(self) -> Any:
            return rebuild.there, (path,)

    class Evil:
        def __reduce__(self) -> Any:
            return getattr(rebuild, name), (Where(), content)

    checkpointer = EnvCheckpointer(env)
    with contextlib.suppress(FaultError):
        checkpointer.prepare(pickle.dumps((None, 2, [""], [{}], [], {}, Evil()), 5), trusted=False)
    assert env.way.__defaults__ == (1,)
    assert env.made.args == ()


def test_attributes_are_given_to_nothing_that_was_there() -> None:
    """A hostile file cannot change an environment while it is only read."""
    env = after(Functions, 1)
    steps = env.steps

    class Evil:
        def __reduce__(self) -> Any:
            return rebuild.with_attributes, (Where(), {"steps": 99})

    class Where:
        def __reduce__(self) -> Any:
            return rebuild.there, ((0,),)

    content = (None, 2, [""], [{}], [], {}, Evil())
    data = pickle.dumps(content, 5)
    with pytest.raises(Exception, match="not on the list of safe classes"):
        EnvCheckpointer(env).prepare(data, trusted=False)
    assert env.steps == steps
