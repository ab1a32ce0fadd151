"""Random operations on a vectorized environment and on a simple reference implementation.

A seed determines the operations. If the two differ, the operations are reduced to a minimal failing
sequence, which is printed as lines of code.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from comparing import assert_same
from example_envs import TalliedEnv, Wrapped

from xuance_envs.errors import EnvError

NUM_ENVS = 5


def tallied(name: int) -> Any:
    """Create an environment that counts its operations; every second one is wrapped."""
    return Wrapped(TalliedEnv(name)) if name % 2 else TalliedEnv(name)


ENV_FNS = [partial(tallied, name) for name in range(NUM_ENVS)]


@dataclass(frozen=True)
class Operation:
    """A method call."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [repr(value) for value in self.args]
        given += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"envs.{self.name}({', '.join(given)})"

    def on(self, envs: Any) -> Outcome:
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        try:
            return Outcome(getattr(envs, self.name)(*args, **kwargs))
        except Exception as error:
            return Outcome(error=error)


def operation(name: str, *args: Any, **kwargs: Any) -> Operation:
    """Create a method call; arguments that are None are omitted."""
    return Operation(name, args, {key: value for key, value in kwargs.items() if value is not None})


@dataclass
class Outcome:
    """The return value of a method, or its exception."""

    value: Any = None
    error: Exception | None = None

    @property
    def kind(self) -> str:
        """Exception type; for an EnvError also its environment and command."""
        if self.error is None:
            return "returned"
        kind = type(self.error).__name__
        if isinstance(self.error, EnvError):
            return f"{kind} of environment {self.error.env_index} in {self.error.command}"
        return kind


class LockstepPair:
    """A vectorized environment and its reference implementation."""

    def __init__(self, envs: Any, reference: Any) -> None:
        self.envs = envs
        self.reference = reference
        self._returned: list[tuple[str, Any, Any]] = []

    def plays(self, done: Operation) -> bool:
        """Return whether an operation is defined for both in their current state."""
        return True

    def plain(self, value: Any) -> Any:
        """Convert a return value to the form for comparison."""
        return value

    def after(self, done: Operation, expected: Outcome) -> None:
        """Make further checks or calls after an operation on both."""

    def do(self, done: Operation) -> None:
        """Call the same method of both."""
        if not self.plays(done):
            return
        expected, got = done.on(self.reference), done.on(self.envs)
        if got.kind != expected.kind:
            raise AssertionError(f"{done}: {got.kind}, expected: {expected.kind}") from (
                got.error or expected.error
            )
        if got.error is None:
            right = copy.deepcopy(self.plain(expected.value))
            assert_same(self.plain(got.value), right, str(done))
            self._returned.append((f"{done}, looked at later", got.value, right))
        self.after(done, expected)

    def look_back(self) -> None:
        """Raise if a returned value has changed since it was returned."""
        for what, got, right in self._returned:
            assert_same(self.plain(got), right, what)


Pair = Callable[[], AbstractContextManager[LockstepPair]]
Draw = Callable[[random.Random], Operation]


def make_env_error(pair: Pair, operations: Sequence[Operation]) -> AssertionError | None:
    """Apply the operations to a new pair; return the error if the outcomes differ."""
    try:
        with pair() as beside:
            for done in operations:
                beside.do(done)
            beside.look_back()
    except AssertionError as failure:
        return failure
    return None


def assert_alike(pair: Pair, draw: Draw, seeds: Sequence[int], length: int) -> None:
    """Raise an error with a minimal program if the outcomes differ for any seed."""
    __tracebackhide__ = True
    for seed in seeds:
        rng = random.Random(seed)
        operations = [draw(rng) for _ in range(length)]
        if (failure := make_env_error(pair, operations)) is not None:
            few, failure = shortened(pair, operations, failure)
            lines = "\n".join(f"    {done}" for done in few)
            raise AssertionError(
                f"seed {seed}, {len(few)} of its {length} operations:\n{lines}\n{failure}"
            ) from failure.__cause__


def shortened(
    pair: Pair, operations: Sequence[Operation], failure: AssertionError
) -> tuple[list[Operation], AssertionError]:
    """Remove operations that are not needed for the failure; return the rest and its error."""
    few = list(operations)
    size = len(few)
    while size:
        for start in range(len(few) - size, -1, -size):
            without = few[:start] + few[start + size :]
            if (other := make_env_error(pair, without)) is not None:
                few, failure = without, other
        size //= 2
    return few, failure


def tenth(part: int, count: int) -> range:
    """Return a tenth of the ``count`` seeds of a long test, so that several processes share it."""
    return range(100 + part * count // 10, 100 + (part + 1) * count // 10)


# --- what operations are drawn from ---------------------------------------------------------------


def weighted(rng: random.Random, choices: dict[Callable[[], Operation], float]) -> Operation:
    """Draw one of several operations by weight."""
    (chosen,) = rng.choices(list(choices), list(choices.values()))
    return chosen()


def some(rng: random.Random) -> list[int]:
    """Draw some environments, in random order."""
    return rng.sample(range(NUM_ENVS), rng.randint(1, NUM_ENVS))


def a_seed(rng: random.Random, count: int = NUM_ENVS) -> Any:
    """Draw a seed for ``count`` environments, or None."""
    seeds = [rng.choice([None, rng.randrange(100)]) for _ in range(count)]
    return rng.choice([None, None, rng.randrange(100), seeds])


def actions(rng: random.Random, fails: float = 0.0, count: int = NUM_ENVS) -> Any:
    """Draw an action for each environment; with a given probability, one of them raises."""
    drawn = [rng.randrange(TalliedEnv.FAIL) for _ in range(count)]
    if rng.random() < fails:
        drawn[rng.randrange(count)] = TalliedEnv.FAIL
    return np.array(drawn) if rng.random() < 0.7 else drawn


def a_call(rng: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Draw a method that all environments, only the wrapped ones, or none have."""
    return rng.choice(
        [
            ("touch", (), {}),
            ("touch", (rng.randrange(9),), {}),
            ("touch", (), {"by": 2}),
            ("describe", ("I am",), {"mark": rng.choice("!?")}),
            ("fail_if", (rng.randrange(NUM_ENVS),), {}),
            ("describe_layer", (), {}),
            ("missing", (), {}),
        ]
    )


def a_name(rng: random.Random) -> str:
    """Draw an attribute that all environments, only the wrapped ones, or none have."""
    return rng.choice(["level", "level", "doubled", "touched", "layer", "missing"])


def a_value(rng: random.Random) -> Any:
    """Draw an attribute value that is not a list or tuple."""
    return rng.choice([rng.randrange(100), rng.random(), "text", {"a": [1, 2]}, None])


def values(rng: random.Random, count: int = NUM_ENVS) -> Any:
    """Draw one value for all environments, or a list or tuple with one per environment."""
    each = [a_value(rng) for _ in range(count)]
    return rng.choice([a_value(rng), each, tuple(each)])


@contextlib.contextmanager
def closing(beside: LockstepPair) -> Iterator[LockstepPair]:
    """Close both at the end of the context."""
    try:
        yield beside
    finally:
        beside.envs.close()
        beside.reference.close()
