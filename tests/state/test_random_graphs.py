"""Environments built from random object graphs go on exactly, or are refused: never otherwise."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import functools
import importlib
import importlib.util
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import hypothesis
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import strategies as st

from xuance_envs.state import rebuild
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError
from xuance_envs.state.unpickling import Target
from xuance_envs.state.values.functions import CodeIndex


class Plain:
    def __init__(self, held: Any) -> None:
        self.held, self.count = held, 0.0

    def use(self) -> float:
        self.count += 1
        return self.count


class Slotted:
    __slots__ = ("count", "held")

    def __init__(self, held: Any) -> None:
        self.held, self.count = held, 0.0

    def use(self) -> float:
        self.count += 2
        return self.count


class Derived(Plain):
    def use(self) -> float:
        self.count += 0.5
        return super().use()


class OwnList(list[Any]):
    """List with an attribute."""

    count = 0.0

    def use(self) -> float:
        self.count += 1
        return self.count + len(self)


class OwnDict(dict[Any, Any]):
    def use(self) -> float:
        self["uses"] = self.get("uses", 0.0) + 1
        return float(self["uses"])


class OwnArray(np.ndarray):  # type: ignore[type-arg]
    """Array with an attribute."""

    count = 0.0


class OwnRandom(random.Random):
    count = 0.0

    def use(self) -> float:
        self.count += 1
        return self.count + self.random()


class Hooked:
    """Saves itself, and cannot be pickled."""

    def __init__(self, held: Any) -> None:
        self.handle, self.count = (each for each in ()), float(held % 7)

    def __env_state__(self) -> Any:
        return self.count

    def __set_env_state__(self, value: Any) -> None:
        self.count = value

    def use(self) -> float:
        self.count += 3
        return self.count


def closures(held: Any) -> list[Any]:
    count = 0.0

    def add(step: float = 1.0, seen: list[float] = []) -> float:  # noqa: B006
        nonlocal count
        count += step
        seen.append(step)
        return count + len(seen)

    def read() -> float:
        return count + (held is read.held)  # type: ignore[attr-defined]

    read.held = held  # type: ignore[attr-defined]
    return [add, read]


def one_of(number: int) -> Callable[[], float]:
    if number % 3 == 0:
        return lambda: 1.0
    if number % 3 == 1:
        return lambda: 2.0
    return lambda: 2.0 + number


def counting(function: Callable[[], float]) -> Any:
    @functools.wraps(function)
    def counted() -> float:
        counted.calls += 1  # type: ignore[attr-defined]
        return float(function()) + counted.calls  # type: ignore[attr-defined]

    counted.calls = 0  # type: ignore[attr-defined]
    return counted


TABLE = np.dtype([("x", "f8"), ("y", "i4"), ("z", "f4", (2,))])


def array_of_objects(*values: Any) -> Any:
    """Return a 1-D array; ``np.array`` would ask tensors for their elements."""
    made = np.empty(len(values), object)
    for i, value in enumerate(values):
        made[i] = value
    return made


class Builder:
    """Creates values from numbers; each may hold those that came before it."""

    def __init__(self) -> None:
        self.made: list[Any] = [0.0, "text", 5]

    def build(self, kind: str, one: int, other: int) -> None:
        a, b = (self.made[number % len(self.made)] for number in (one, other))
        self.made.append(getattr(self, kind)(a, b, one))

    def of_kind(self, kinds: Any, number: int) -> Any:
        found = [value for value in self.made if isinstance(value, kinds)]
        return found[number % len(found)] if found else None

    def a_list(self, a: Any, b: Any, n: int) -> Any:
        return OwnList([a, b]) if n % 3 == 0 else [a, b]

    def a_tuple(self, a: Any, b: Any, n: int) -> Any:
        return a, (b, n)

    def a_dict(self, a: Any, b: Any, n: int) -> Any:
        kind = (dict, OwnDict, collections.OrderedDict)[n % 3]
        return kind({"a": a, n: b, ("k", n): a})

    def a_deque(self, a: Any, b: Any, n: int) -> Any:
        return collections.deque([a, b], maxlen=3 + n % 2)

    def a_set(self, a: Any, b: Any, n: int) -> Any:
        return {n, n + 1, f"{n}"} if n % 2 else frozenset([n, f"{n}"])

    def an_object(self, a: Any, b: Any, n: int) -> Any:
        return (Plain, Slotted, Derived)[n % 3](a)

    def a_hooked(self, a: Any, b: Any, n: int) -> Any:
        return Hooked(n)

    def a_cycle(self, a: Any, b: Any, n: int) -> Any:
        holder = self.of_kind((list, Plain, Slotted), n)
        if isinstance(holder, list):
            holder.append(a)
        elif holder is not None:
            holder.held = a
        return holder

    def an_array(self, a: Any, b: Any, n: int) -> Any:
        return (
            lambda: np.arange(float(n % 5 + 2)),
            lambda: np.zeros((3, 2), order="F"),
            lambda: np.zeros((2, 3, 2)).transpose(2, 0, 1).copy(order="K"),
            lambda: np.zeros(3, TABLE),
            lambda: array_of_objects(a, b, 1.0),
            lambda: np.zeros(3).view(OwnArray),
            lambda: np.zeros(3, np.float32).astype(">f4"),
            lambda: np.rec.array([(1.0, 2)], dtype=[("speed", "f8"), ("count", "i4")]),
            lambda: np.ma.array([1.0, 2.0], mask=[False, n % 2 == 0]),
        )[n % 9]()

    def a_view(self, a: Any, b: Any, n: int) -> Any:
        base = self.of_kind((np.ndarray, bytearray, array.array), n)
        if isinstance(base, (bytearray, array.array)):
            return np.frombuffer(base, np.uint8)[n % 2 :]
        if base is None or base.ndim == 0:
            return np.zeros(2)
        if base.dtype.names:
            return base[base.dtype.names[n % len(base.dtype.names)]]
        ways = base[::-1], base[1:], base.T, base[..., :1], base.view(), base[:0]
        return ways[n % len(ways)]

    def a_buffer(self, a: Any, b: Any, n: int) -> Any:
        return array.array("i", range(n % 5 + 1)) if n % 2 else bytearray(n % 5 + 3)

    def a_generator(self, a: Any, b: Any, n: int) -> Any:
        bits = self.of_kind(np.random.BitGenerator, n) or np.random.PCG64(n)
        kinds = (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
        return (
            lambda: kinds[n % 4](n),
            lambda: np.random.Generator(bits),
            lambda: np.random.RandomState(bits),
            lambda: np.random.RandomState(n),
            lambda: random.Random(n),
            lambda: OwnRandom(n),
        )[n % 6]()

    def a_seed(self, a: Any, b: Any, n: int) -> Any:
        seed = self.of_kind(np.random.SeedSequence, n)
        if seed is None or n % 4 == 0:
            return np.random.SeedSequence(n)
        return (np.random.default_rng, np.random.PCG64, np.random.MT19937)[n % 3](seed)

    def a_tensor(self, a: Any, b: Any, n: int) -> Any:
        torch = importlib.import_module("torch")
        tensor, base = self.of_kind(torch.Tensor, n), self.of_kind(np.ndarray, n)
        if base is not None and base.dtype == float and base.flags.writeable and n % 2:
            with contextlib.suppress(ValueError):  # torch knows no such strides
                return torch.from_numpy(np.asarray(base))
        if tensor is None or n % 5 == 0:
            return torch.zeros(n % 3 + 2)
        return (
            lambda: tensor.detach().numpy(),
            lambda: tensor.detach()[1:],
            lambda: torch.nn.Parameter(tensor.detach(), requires_grad=n % 3 > 0),
            lambda: tensor.detach().requires_grad_(),
        )[n % 4]()

    def a_method(self, a: Any, b: Any, n: int) -> Any:
        owner = self.of_kind(
            (Plain, Slotted, Hooked, OwnList, OwnRandom, random.Random, np.random.Generator), n
        )
        if owner is None:
            queue: collections.deque[float] = collections.deque([1.0], maxlen=4)
            self.made.append(queue)
            return queue.copy
        return getattr(owner, "use", None) or owner.random

    def a_function(self, a: Any, b: Any, n: int) -> Any:
        return closures(a) if n % 2 else one_of(n)

    def a_wrapper(self, a: Any, b: Any, n: int) -> Any:
        return counting(a if callable(a) and not isinstance(a, type) else one_of(n))

    def a_partial(self, a: Any, b: Any, n: int) -> Any:
        rng = self.of_kind(np.random.Generator, n)
        if rng is None:
            return functools.partial(max, 1.0, float(n))
        return functools.partial(rng.normal, 0.0, scale=float(n % 3 + 1))

    def an_event(self, a: Any, b: Any, n: int) -> Any:
        return (threading.Event, threading.Lock, threading.RLock, threading.Condition)[n % 4]()

    def a_vector(self, a: Any, b: Any, n: int) -> Any:
        pygame = importlib.import_module("pygame")
        surface = pygame.Surface((3, 2))
        rect = getattr(pygame, "FRect", pygame.Rect)(n, 1, 2, 3)  # pygame-ce has both
        return (pygame.Vector2(n, 1), rect, surface)[n % 3]

    def refused(self, a: Any, b: Any, n: int) -> Any:
        return (each for each in range(3))


ALL_KINDS = [
    name for name in vars(Builder) if name[0] != "_" and name not in ("build", "of_kind", "refused")
]
KINDS = [name for name in ALL_KINDS if name != "a_tensor"]
HAS_PYGAME = importlib.util.find_spec("pygame") is not None
if not HAS_PYGAME:
    KINDS.remove("a_vector")
ABOUT_MEMORY = ["a_tensor", "an_array", "a_view", "a_buffer", "a_list"]


def use(value: Any, number: int) -> float:
    """Change a value, and return a number that depends on what it was."""
    if isinstance(value, np.ndarray):
        return use_array(value, number)
    if isinstance(value, (Plain, Slotted, Hooked, OwnDict, OwnRandom)):
        return value.use()
    if isinstance(value, (list, collections.deque)):
        if len(value) < 8:
            value.append(float(number))
        elif isinstance(value, list):
            value.pop(number % 2)
        return len(value) + sum(each for each in value if isinstance(each, float))
    if isinstance(value, dict):
        value["new"] = value.get("new", 0.0) + number
        return float(value["new"])
    if isinstance(value, set):
        value ^= {number}
        return float(len(value))
    if isinstance(value, (bytearray, array.array)):
        value[number % len(value)] = number % 256
        return float(sum(value))
    if isinstance(value, np.random.Generator) and number % 5 == 0:
        return value.spawn(1)[0].random() if value.bit_generator.seed_seq is not None else 0.0
    if isinstance(value, (random.Random, np.random.Generator)):
        return value.random()
    if isinstance(value, np.random.SeedSequence):
        return float(value.spawn(1)[0].generate_state(1)[0])
    if isinstance(value, np.random.RandomState):
        return value.random_sample() if number % 2 else value.standard_normal()
    if isinstance(value, np.random.BitGenerator):
        return float(value.random_raw() % 1000)
    if isinstance(value, threading.Event):
        (value.set if number % 2 else value.clear)()
        return float(value.is_set())
    if type(value).__module__.partition(".")[0] == "torch":
        return use_tensor(value, number)
    if callable(value) and not isinstance(value, type):
        found = value()
        return float(found) if isinstance(found, float) else float(len(found))
    if HAS_PYGAME:
        return use_pygame(value, number)
    return 0.0


def use_array(value: Any, number: int) -> float:
    if value.size == 0:
        return 0.0
    if value.dtype.names:
        name = value.dtype.names[number % len(value.dtype.names)]
        value[name] += 1
        return float(np.sum(value[name]))
    if isinstance(value, OwnArray):
        value.count += 1
    if value.flags.writeable and value.dtype != object:
        value[(0,) * value.ndim] += number % 7
    if value.dtype == object:
        value.flat[-1] = float(number)
        return float(number)
    return float(value.sum() or 0.0) + getattr(value, "count", 0.0)


def use_tensor(value: Any, number: int) -> float:
    if value.requires_grad and number % 3 == 0:
        value.square().sum().backward()
        return float(value.grad.sum())
    plain = value.detach()
    if len(plain):
        plain[number % len(plain)] += number % 7
    return float(plain.sum())


def use_pygame(value: Any, number: int) -> float:
    pygame = importlib.import_module("pygame")
    if isinstance(value, pygame.Vector2):
        value.x += number
        return float(value.length())
    if isinstance(value, getattr(pygame, "FRect", pygame.Rect)):
        value.move_ip(number, 0.5)
        return float(value.x)
    if isinstance(value, pygame.Surface):
        color = value.get_at((0, 0))
        value.set_at((0, 0), (number % 256, color.r, color.g))
        return float(color.r + color.g)
    return 0.0


class Graph(gymnasium.Env):  # type: ignore[type-arg]
    """Holds a graph of values; each step uses some of them and sums up what they hold."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, recipe: list[tuple[str, int, int]], hidden: int) -> None:
        builder = Builder()
        for step in recipe:
            builder.build(*step)
        self.values = builder.made
        self.last = builder.made[-1]  # another way to it
        del self.values[3 : 3 + hidden % 3]  # may still be reached through others
        self.recipe = recipe

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.chosen = one_of(int(self.np_random.integers(9)))
        self.picked = self.values[int(self.np_random.integers(len(self.values)))]
        if self.np_random.random() < 0.3:
            builder = Builder()
            builder.made = self.values
            builder.build(*self.recipe[int(self.np_random.integers(len(self.recipe)))])
        return np.zeros(1), {}

    def step(self, action: int) -> Any:
        total = self.chosen()
        for number in self.np_random.integers(1000, size=4).tolist():
            value = (*self.values, self.picked, self.last)[number % (len(self.values) + 2)]
            total += use(value, number)
        return np.array([total]), total, False, False, {}


def played(env: Any, steps: int) -> list[Any]:
    """Return the rewards of some steps and a reset, or the error that they end with."""
    rewards: list[Any] = []
    for number in range(steps):
        try:
            rewards.append(repr(env.step(0)[1]))
        except Exception as error:  # a value of this kind cannot be used so
            rewards.append(type(error).__name__)
        if number % 9 == 8:
            env.reset()
    return rewards


def recipes(kinds: list[str]) -> Any:
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 60), st.integers(0, 60))
    return st.lists(step, min_size=1, max_size=14)


RECIPES = recipes(KINDS)


def check(recipe: list[tuple[str, int, int]], hidden: int, before: int) -> None:
    env, twin = Graph(recipe, hidden), Graph(recipe, hidden)
    env.reset(seed=1)
    twin.reset(seed=2)
    played(env, before)
    played(twin, 3)
    source, target = EnvCheckpointer(env), EnvCheckpointer(twin)
    for steps in (25, 4):
        try:
            data = source.save()
            target.prepare(data, trusted=True).apply()
        except FaultError as fault:
            hypothesis.event(f"refused: {fault.reason[:40]}")
            return
        assert source.plan.first_difference(target.plan) is None
        assert played(twin, steps) == played(env, steps)
    hypothesis.event("continued")


@hypothesis.settings(max_examples=60, derandomize=True)
@hypothesis.given(RECIPES, st.integers(0, 2), st.integers(0, 12))
def test_a_random_graph_goes_on_exactly_or_is_refused(
    recipe: Any, hidden: int, before: int
) -> None:
    check(recipe, hidden, before)


@hypothesis.settings(max_examples=40, derandomize=True)
@hypothesis.given(recipes(ABOUT_MEMORY), st.integers(0, 2), st.integers(0, 12))
def test_a_random_graph_with_tensors_goes_on_exactly_or_is_refused(
    recipe: Any, hidden: int, before: int
) -> None:
    pytest.importorskip("torch")
    check(recipe, hidden, before)


SECONDS = 20


@pytest.mark.long
@pytest.mark.parametrize("run", range(10))
def test_random_graphs_go_on_exactly_for_minutes(run: int) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    kinds = recipes(KINDS), recipes([*KINDS, *ABOUT_MEMORY[: 5 * has_torch]])
    settings = hypothesis.settings(max_examples=400, deadline=None, database=None)
    begun = time.monotonic()
    while time.monotonic() < begun + SECONDS:
        seeded = hypothesis.seed(random.randrange(2**60))
        given = hypothesis.given(kinds[run % 2], st.integers(0, 2), st.integers(0, 12))
        seeded(settings(given(check)))()
        run += 1


# -- controls: the property fails where a kind of value is restored wrongly -----------------------


def faults() -> dict[str, tuple[Any, str, Any]]:
    """Return places in the package and what to put there."""

    def copied(owner: Any, offset: int, shape: Any, strides: Any, dtype: Any, _: bool) -> Any:
        return rebuild.shared_view(owner, offset, shape, strides, dtype, True).copy()

    def without_content(made: Any, content: Any) -> None:
        pass

    return {
        "objects of pygame": (rebuild.PLAIN_FUNCTIONS, "surface", lambda size, *_: surface(size)),
        "what builtins are bound to": (Target, "method", staticmethod(unbound)),
        "arguments of partials": (Target, "with_arguments", lambda *_: None),
        "code of functions": (CodeIndex, "function", any_code),
        "variables of functions": (Target, "with_content", lambda *_: None),
        "shared memory": (rebuild.PLAIN_FUNCTIONS, "shared_view", copied),
        "bit generators": (rebuild.PLAIN_FUNCTIONS, "generator", lambda bits: own_stream(bits)),
        "hooks": (Target, "handled", lambda *_: []),
        "elements of object arrays": (rebuild.PLAIN_FUNCTIONS, "with_elements", without_content),
    }


def surface(size: Any) -> Any:
    return importlib.import_module("pygame").Surface(size)


def unbound(owner: Any, name: str) -> Any:
    return getattr(copy.deepcopy(owner) if not isinstance(owner, type) else owner, name)


def any_code(index: CodeIndex, digest: bytes, trusted: bool) -> Any:
    found = index._visible_code
    names = {key: code.code.co_name for key, code in found.items()}
    return next(c for key, c in found.items() if names[key] == names.get(digest, names[key]))


def own_stream(bits: Any) -> Any:
    return np.random.Generator(copy.deepcopy(bits))


@pytest.mark.long
@pytest.mark.parametrize("name", faults())
def test_each_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, fault = faults()[name]
    if name == "objects of pygame" and not HAS_PYGAME:
        pytest.skip("without pygame")
    if isinstance(place, dict):
        monkeypatch.setitem(place, attribute, fault)
    else:
        monkeypatch.setattr(place, attribute, fault)
    rng = random.Random(1)
    monkeypatch.setattr(hypothesis, "event", lambda _: None)
    for _ in range(1500):
        length = rng.randint(1, 14)
        recipe = [(rng.choice(KINDS), rng.randrange(61), rng.randrange(61)) for _ in range(length)]
        try:
            check(recipe, rng.randrange(3), rng.randrange(13))
        except (AssertionError, RecursionError):
            return
    pytest.fail(f"no graph shows what is wrong with {name}")
