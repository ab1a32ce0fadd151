"""What objects share, and what their pickles leave out: rebuilt as such, or refused."""

from __future__ import annotations

import array
import ctypes
import functools
import importlib
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from scripts import run_script

from xuance_envs import DummyVecEnv, StateError, check_saving
from xuance_envs.state.checkpointer import EnvCheckpointer, RngFork
from xuance_envs.state.faults import FaultError
from xuance_envs.state.pickling import dumps_plain, loads_plain
from xuance_envs.state.rebuild import BIT_GENERATORS


class Holder(gymnasium.Env):  # type: ignore[type-arg]
    """Holds what a function creates; each step calls another function with it and the action."""

    observation_space = spaces.Box(-1e12, 1e12, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, make: Callable[[int], Any], use: Callable[[Any, int], Any]) -> None:
        self.make, self.use = make, use

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.held = self.make(int(self.np_random.integers(100)))
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        value = float(self.use(self.held, int(action)))
        return np.array([value]), value, False, False, {}


def played(env: Any) -> list[float]:
    return [env.step(action)[1] for action in (0, 1, 2, 1, 0, 2)]


def assert_goes_on(make: Callable[[int], Any], use: Callable[[Any, int], Any]) -> None:
    env, twin = Holder(make, use), Holder(make, use)
    env.reset(seed=1)
    twin.reset(seed=2)
    for _ in range(2):  # the second time right after a load
        for one, other in ((env, twin), (twin, env)):
            played(one)
            EnvCheckpointer(other).prepare(EnvCheckpointer(one).save(), trusted=True).apply()
            assert played(other) == played(one)
    check_saving(lambda: Holder(make, use), steps=20)


# -- seeds ---------------------------------------------------------------------------------


def seed_and_generators(number: int) -> Any:
    seed = np.random.SeedSequence(number)
    return seed, np.random.default_rng(seed), np.random.Generator(np.random.SFC64(seed))


def spawned(held: Any, action: int) -> float:
    seed, *generators = held
    if action == 2:
        return np.random.default_rng(seed.spawn(1)[0]).random()
    return float(generators[action].spawn(1)[0].random())


def test_a_seed_that_generators_share_stays_shared() -> None:
    assert_goes_on(seed_and_generators, spawned)


def test_a_seed_of_the_environments_own_generator_stays_shared() -> None:
    env, twin = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    for each in (env, twin):
        each.reset(seed=4)
        plain: Any = each.unwrapped
        plain.seed_of_opponents = plain.np_random.bit_generator.seed_seq
    plain.np_random.spawn(3)
    for _ in range(2):
        EnvCheckpointer(twin).prepare(EnvCheckpointer(env).save(), trusted=False).apply()
        for each in (env, twin):
            drawn: Any = each.unwrapped
            child = np.random.default_rng(drawn.seed_of_opponents.spawn(1)[0])
            each.found = child.random(), drawn.np_random.spawn(1)[0].random()  # type: ignore[attr-defined]
        assert env.found == twin.found  # type: ignore[attr-defined]
        del env.found, twin.found  # type: ignore[attr-defined]


def test_seeds_that_nothing_else_holds_are_saved_as_numbers() -> None:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=4)
    source = EnvCheckpointer(env)
    for _ in range(2):
        assert b"seed_sequence" not in source.save()


def test_forks_have_seeds_of_their_own() -> None:
    env = Holder(seed_and_generators, spawned)
    env.reset(seed=1)
    data = EnvCheckpointer(env).save()
    found = set()
    for number in range(3):
        twin = Holder(seed_and_generators, spawned)
        twin.reset(seed=1)
        EnvCheckpointer(twin).prepare(data, trusted=True, fork=[number]).apply()
        found.add(tuple(played(twin)))
    assert len(found) == 3
    assert len({results[2] for results in found}) == 3  # of the seed itself


@pytest.mark.parametrize("bits", sorted(BIT_GENERATORS))
def test_forks_of_old_generators_share_no_number(bits: str) -> None:
    def old_generator(number: int) -> Any:
        made: Any = np.random.RandomState(getattr(np.random, bits)(number))
        made.standard_normal()  # a second number is in reserve
        return made

    env = Holder(old_generator, lambda held, action: float(held.standard_normal()))
    env.reset(seed=1)
    data = EnvCheckpointer(env).save()
    first = set()
    for number in range(3):
        twin = Holder(old_generator, env.use)
        twin.reset(seed=1)
        EnvCheckpointer(twin).prepare(data, trusted=True, fork=[number]).apply()
        first.add(twin.held.standard_normal())
        generator = old_generator(1)
        first.add(RngFork([number])(generator).standard_normal())
    assert len(first) == 6


# -- buffers -------------------------------------------------------------------------------


def array_and_view(number: int) -> Any:
    owner = array.array("d", [number, 0, 0])
    return owner, np.frombuffer(owner), memoryview(owner)


def c_array_and_view(number: int) -> Any:
    owner = (ctypes.c_double * 3)(number)
    return owner, np.frombuffer(owner)


def written(held: Any, action: int) -> float:
    owner, view, *_ = held
    owner[action] += 1
    view[0] += 0.25
    return float(sum(owner) + view.sum())


@pytest.mark.parametrize("make", [array_and_view, c_array_and_view])
def test_views_of_other_buffers_stay_views(make: Any) -> None:
    assert_goes_on(make, written)


def test_a_c_value_in_the_memory_of_another_object_is_refused() -> None:
    env = Holder(lambda _: (owner := bytearray(8), ctypes.c_double.from_buffer(owner)), written)
    env.reset(seed=1)
    with pytest.raises(FaultError, match="uses the memory of another object"):
        EnvCheckpointer(env).save()


class LeavesOut:
    """Leaves attributes out of its pickles; one of them cannot be saved."""

    def __init__(self, number: int) -> None:
        self.number, self.counts, self.me = number, {0: 0}, self
        self.lock, self.stream = threading.Lock(), iter(each for each in ())

    def __getstate__(self) -> Any:
        return {"number": self.number}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class Recreated:
    """Is created again by its pickles."""

    __slots__ = ("counts", "number")

    def __init__(self, number: int) -> None:
        self.number, self.counts = number, {0: 0}

    def __reduce__(self) -> Any:
        return Recreated, (self.number,)


class Nested:
    """Leaves the next one out of its pickles."""

    def __init__(self, number: int, depth: int = 40) -> None:
        self.number, self.counts = number, {0: 0}
        self.next = Nested(number, depth - 1) if depth else None

    def __getstate__(self) -> Any:
        return {"number": self.number}


class Resets:
    """Changes attributes when it is restored."""

    def __init__(self, number: int) -> None:
        self.number, self.counts = number, {0: 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, number=0, counts={})


class CountsWrites:
    """Counts how often its attributes are set."""

    __slots__ = ("counts", "number")

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "counts", {0: 0})
        object.__setattr__(self, "number", number)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        self.counts[-1] = self.counts.get(-1, 0) + 1


class Slotted:
    """Adds slots to a class that has other ways of being pickled."""

    __slots__ = ()

    def filled(self, number: int) -> Any:
        self.number, self.counts = number, {0: 0}  # type: ignore[misc]
        return self


class SlottedRandom(Slotted, random.Random):
    __slots__ = "counts", "number"


class SlottedError(Slotted, ValueError):
    __slots__ = "counts", "number"


class SlottedPartial(Slotted, functools.partial):  # type: ignore[type-arg]
    __slots__ = "counts", "number"


class SlottedPart(Slotted, EzPickle):
    __slots__ = "counts", "number"


@pytest.mark.parametrize("kind", [SlottedRandom, SlottedError, SlottedPartial, SlottedPart])
def test_slots_of_subclasses_are_state(kind: Any) -> None:
    assert_goes_on(lambda number: kind(*[print][: kind is SlottedPartial]).filled(number), counted)


class OwnDict(dict):  # type: ignore[type-arg]
    """Converts values when they are set, and again when they are listed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self[0] = 0

    def __setitem__(self, key: int, value: int) -> None:
        super().__setitem__(key, value + 1)

    def items(self) -> Any:
        return [(key, -value) for key, value in super().items()]

    @property
    def counts(self) -> OwnDict:
        return self


class OwnOrderedDict(OwnDict, OrderedDict):  # type: ignore[type-arg]
    """Is ordered."""


class OwnDefaultDict(defaultdict):  # type: ignore[type-arg]
    counts = OwnDict.counts

    def __init__(self, number: int) -> None:
        super().__init__(int)
        self.number = number


class OwnCounter(Counter):  # type: ignore[type-arg]
    counts = OwnDict.counts

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class OwnList(list):  # type: ignore[type-arg]
    """Converts elements when they are added."""

    def __init__(self, number: int) -> None:
        super().__init__([0])
        self.number = number

    @property
    def counts(self) -> dict[int, int]:
        self.append(1)
        return {0: sum(self)}

    def append(self, value: int) -> None:
        super().append(value + 1)

    def extend(self, values: Any) -> None:
        super().extend(value + 1 for value in values)


class OwnDeque(deque):  # type: ignore[type-arg]
    """Has other arguments than its base class."""

    counts = OwnList.counts

    def __init__(self, number: int) -> None:
        super().__init__([0] * 5, maxlen=5)
        self.number = number


class OwnSet(set):  # type: ignore[type-arg]
    counts = OwnList.counts

    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.number = numbers

    def append(self, value: int) -> None:
        self.add(len(self) + value)


class Money(Decimal):
    """Its pickles leave attributes out."""

    def __init__(self, number: int) -> None:
        self.number, self.counts = number, {0: 0}


class Doubling:
    """Descriptor that stores twice what it is given, under its own name."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else vars(obj)[self.name]

    def __set__(self, obj: Any, value: Any) -> None:
        vars(obj)[self.name] = 2 * value


class Doubled(random.Random):
    number = Doubling()

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number, self.counts = number, {0: 0}


def counted(held: Any, action: int) -> float:
    held.counts[action] = held.counts.get(action, 0) + 1
    held.number += action
    return float(held.number + 10 * sum(held.counts.values()) + (getattr(held, "me", 0) is held))


LEAVE_OUT = [
    *(LeavesOut, Recreated, Nested, Resets, Doubled, Money, CountsWrites),
    *(OwnDict, OwnOrderedDict, OwnDefaultDict, OwnCounter, OwnList, OwnDeque, OwnSet),
]


@pytest.mark.parametrize("make", LEAVE_OUT)
def test_what_an_objects_pickles_leave_out_is_state(make: Any) -> None:
    assert_goes_on(make, counted)


def test_classes_of_a_script_are_complete_in_workers(tmp_path: Path) -> None:
    """``__main__`` has the script's file in the main process, but not in spawned workers."""
    script = """
    import gymnasium, numpy as np
    from xuance_envs import DummyVecEnv, SubprocVecEnv

    class Counter:
        count = 0
        def __reduce__(self):
            return Counter, ()

    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 9, (1,))
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            self.counter = Counter()
            return np.zeros(1, np.float32), {}
        def step(self, action, by=2):
            self.counter.count += by
            return np.full(1, self.counter.count, np.float32), 0.0, False, False, {}

    with DummyVecEnv([Counting]) as here, SubprocVecEnv([Counting]) as there:
        here.reset()
        here.step([0])
        there.load_state(here.save_state())
        there.load_state(there.save_state())
        print(there.step([0])[0])
    """
    assert run_script(tmp_path, script) == "[[4.]]\n"


def test_a_view_of_numbers_beside_objects_is_refused() -> None:
    table = np.zeros(2, [("speed", "f8"), ("name", "O")])
    env = Holder(lambda _: table["speed"], written)
    env.reset(seed=1)
    with pytest.raises(FaultError, match="items hold both objects and other values"):
        EnvCheckpointer(env).save()


# -- tensors -------------------------------------------------------------------------------


def torch() -> Any:
    return pytest.importorskip("torch")


def of_leaf(number: int) -> Any:
    """Return a tensor that needs a gradient, and an array in its memory."""
    leaf = importlib.import_module("torch").ones(3, requires_grad=True)
    return leaf.detach().numpy(), leaf


def of_parameter(number: int) -> Any:
    leaf = importlib.import_module("torch").nn.Parameter(of_leaf(number)[1].detach())
    return leaf.detach(), leaf, leaf.detach()[1:].numpy()


def from_array(number: int) -> Any:
    numbers = np.zeros(8)
    library = importlib.import_module("torch")
    return numbers[2:7], library.as_tensor(numbers[1:5]), library.from_numpy(numbers[3:6])


def from_bytes(number: int) -> Any:
    library, owner = importlib.import_module("torch"), bytearray(8)
    return owner, library.frombuffer(owner, dtype=library.uint8)


def summed(held: Any, action: int) -> float:
    written, *others = held
    written[action] += 1
    return float(sum(each.sum().item() * (k + 1) for k, each in enumerate(others)))


@pytest.mark.parametrize("make", [of_leaf, of_parameter, from_array, from_bytes])
def test_tensors_and_arrays_stay_in_one_memory(make: Any) -> None:
    torch()
    assert_goes_on(make, summed)


def test_generators_of_tensors_are_state_and_forked() -> None:
    torch = pytest.importorskip("torch")

    def draw(held: Any, action: int) -> float:
        return float(torch.rand(1, generator=held))

    def made(number: int) -> Any:
        return torch.Generator().manual_seed(number)

    assert_goes_on(made, draw)
    with DummyVecEnv([lambda: Holder(made, draw)] * 3) as envs:
        envs.reset(seed=1)
        envs.clone_state(0, [1, 2], fork_rng=True)
        assert len(set(envs.step([0] * 3)[1])) == 3


def test_the_default_device_of_tensors_may_be_another_one() -> None:
    library, numbers = torch(), [0.0, 1.0, 2.0]
    tensor = library.tensor(numbers)
    with library.device("meta"):
        found, numpys = loads_plain(dumps_plain([tensor, tensor.numpy()]), trusted=False)
    assert found.tolist() == numpys.tolist() == numbers


def accumulated(held: Any, action: int) -> float:
    (held[1] - action).square().sum().backward()
    return float(held[1].grad.sum())


@pytest.mark.parametrize("make", [of_leaf, of_parameter])
def test_gradients_are_state(make: Any) -> None:
    torch()
    assert_goes_on(make, accumulated)


def result(number: int) -> Any:
    leaf = importlib.import_module("torch").ones(3, requires_grad=True)
    return [leaf * 2]


def hooked(number: int) -> Any:
    leaf = importlib.import_module("torch").ones(3, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient * 2)
    return [leaf]


def conjugate(number: int) -> Any:
    plain = importlib.import_module("torch").zeros(3, dtype=torch().complex64)
    return plain.numpy(), plain.conj()


def overlapping(number: int) -> Any:
    return from_array(number)[1:]  # nothing holds the array


APART = "Holder.held: .*would not share it after loading: torch.Tensor and torch.Tensor"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (result, r"held\[0\].*result of a computation with gradients"),
        (hooked, r"held\[0\].*hooks"),
        (conjugate, APART),
        (overlapping, APART),
    ],
)
def test_other_tensors_are_refused_by_their_path(make: Any, reason: str) -> None:
    torch()
    with pytest.raises(StateError, match=reason):
        check_saving(lambda: Holder(make, lambda held, action: 0.0))
    with DummyVecEnv([lambda: Holder(make, lambda held, action: 0.0)]) as envs:
        envs.reset()
        with pytest.raises(StateError, match=reason):
            envs.save_state()
