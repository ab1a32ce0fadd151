"""Values and environments compare by content, and the first difference is named by its path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from stateful_envs import MAKERS

from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.faults import FaultError
from xuance_envs.state.values.canonical import digest, first_difference


def counter(start: int) -> Callable[[], int]:
    def count() -> int:
        nonlocal start
        start += 1
        return start

    return count


class Part:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


SHARED = np.zeros(4)
CYCLE: list[Any] = [1]
CYCLE.append(CYCLE)
NESTED: list[Any] = [1]
NESTED.append([1, NESTED])


def linked(number: int, friends: int = 2) -> list[Part]:
    """Objects that refer to each other by sets; one of them is reachable by sets only."""
    parts = [Part(set()) for _ in range(friends)]
    parts[-1].held.add(Part((number,)))
    for part in parts:
        part.held.update(parts)
    return parts[:1]


DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "number": ({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1]"),
    "type": ([1], [True], "[0]"),
    "sign of zero": ((0.0,), (-0.0,), "[0]"),
    "length": ({"a": [1]}, {"a": [1, 2]}, "['a']"),
    "order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ""),
    "array": ([np.zeros(2)], [np.ones(2)], "[0]"),
    "dtype": (np.zeros(2, np.int64), np.zeros(2, np.uint64), ""),
    "sharing": ([SHARED, SHARED], [SHARED, SHARED.copy()], "[1]"),
    "sharing memory": ([SHARED, SHARED[1:]], [SHARED, SHARED[2:]], "[1]"),
    "cycle": (CYCLE, NESTED, "[1]"),
    "slot": (Part([1, 2]), Part([1, 3]), ".held[1]"),
    "cell": ([counter(1)], [counter(2)], "[0].<cell start>"),
    "lambda": (lambda: 1, lambda: 2, ""),
    "partial": (partial(max, 1), partial(max, 2), ".args[0]"),
    "builtin": (max, min, ""),
    "set": ({1, 2}, {1, 3}, ""),
    "objects in sets": (linked(1), linked(2), "[0].held"),
    "generator": (np.random.default_rng(1).random, np.random.default_rng(2).random, ".__self__"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_first_difference_is_named(name: str) -> None:
    one, other, path = DIFFERENT[name]
    found = first_difference(one, other)
    assert found is not None
    assert found[0].startswith(path)
    assert digest(one) != digest(other)
    assert first_difference(one, one) is None
    assert digest(one) == digest(one)


def test_equal_values_made_apart_are_equal() -> None:
    def made() -> Any:
        word = "".join(["a", "b"])  # not interned
        table = {frozenset([word, "c"]): {word, "d"}, "part": Part(np.arange(3.0)[1:])}
        return [table, table, counter(4), partial(min, word), {"x", "y", word}]

    assert first_difference(made(), made()) is None


def test_a_digest_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from xuance_envs.state.values.canonical import digest\n"
        "print(digest([{'a', 'b', 'c', ('d', 1.0)}, lambda: {'x', 'y'}]).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            timeout=100,
        ).stdout
        for seed in "123"
    }
    assert len(seen) == 1


def test_objects_that_refer_to_each_other_by_sets_are_equal_or_too_many() -> None:
    assert first_difference(linked(1, 5), linked(1, 5)) is None
    with pytest.raises(FaultError, match="too many nested sets of objects to compare"):
        digest(linked(1, 12))


def test_what_cannot_be_compared_says_where() -> None:
    with pytest.raises(FaultError, match=r"\['a'\]\[0\]: a generator cannot be compared"):
        digest({"a": [(each for each in ())]})


def stepped(name: str, steps: int) -> Any:
    env = MAKERS[name]()
    env.reset(seed=1)
    env.action_space.seed(3)
    for _ in range(steps):
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
    return env


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MAKERS)
def test_environments_differ_until_the_state_is_loaded(name: str) -> None:
    env, twin = stepped(name, 9), stepped(name, 4)
    source, target = EnvCheckpointer(env), EnvCheckpointer(twin)
    found = source.plan.first_difference(target.plan)
    assert found is not None
    assert found[0]
    target.prepare(source.save(), trusted=True).apply()
    assert source.plan.first_difference(target.plan) is None
    assert found[1] != found[2]
