"""Random operations on a vector environment and on another one that does the same in a simple way.

What one is to be done is decided by a seed. Where the two part, the operations are made as few as
still show it, and printed as the lines of a program.
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
    """An environment that tells what was done to it; every other one is wrapped."""
    return Wrapped(TalliedEnv(name)) if name % 2 else TalliedEnv(name)


ENV_FNS = [partial(tallied, name) for name in range(NUM_ENVS)]


@dataclass(frozen=True)
class Operation:
    """One call of a method."""

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
    """One call of a method; arguments that are None are left out."""
    return Operation(name, args, {key: value for key, value in kwargs.items() if value is not None})


@dataclass
class Outcome:
    """What a method returned, or raised."""

    value: Any = None
    error: Exception | None = None

    @property
    def kind(self) -> str:
        """The sort of exception, and of an environment's also which one, and in what."""
        if self.error is None:
            return "returned"
        kind = type(self.error).__name__
        if isinstance(self.error, EnvError):
            return f"{kind} of environment {self.error.env_index} in {self.error.command}"
        return kind


class LockstepPair:
    """A vector environment beside the one that says what is right.

    Args:
        envs: what is tested.
        reference: what is right.
    """

    def __init__(self, envs: Any, reference: Any) -> None:
        self.envs = envs
        self.reference = reference
        self._returned: list[tuple[str, Any, Any]] = []

    def plays(self, done: Operation) -> bool:
        """Whether an operation means the same for both in the state they are in."""
        return True

    def plain(self, value: Any) -> Any:
        """What was returned, in the form in which it is compared."""
        return value

    def after(self, done: Operation, expected: Outcome) -> None:
        """What else is to be so once an operation was done to both, or has to be done now."""

    def do(self, done: Operation) -> None:
        """Does the same to both.

        Raises:
            AssertionError: it did not have the same outcome.
        """
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
        """Raises if something that was returned has changed since."""
        for what, got, right in self._returned:
            assert_same(self.plain(got), right, what)


Pair = Callable[[], AbstractContextManager[LockstepPair]]
Draw = Callable[[random.Random], Operation]


def make_env_error(pair: Pair, operations: Sequence[Operation]) -> AssertionError | None:
    """Does the operations to both of a new pair; how they told the two apart."""
    try:
        with pair() as beside:
            for done in operations:
                beside.do(done)
            beside.look_back()
    except AssertionError as failure:
        return failure
    return None


def assert_alike(pair: Pair, draw: Draw, seeds: Sequence[int], length: int) -> None:
    """Raises, with a program that shows it, if any seed's operations tell the two apart.

    Args:
        pair: makes a new pair to compare.
        draw: draws an operation.
        seeds: of the sequences of operations.
        length: how many operations a sequence has.
    """
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
    """The operations without those that can be left out, and how they fail then."""
    few = list(operations)
    size = len(few)
    while size:
        for start in range(len(few) - size, -1, -size):
            without = few[:start] + few[start + size :]
            if (other := make_env_error(pair, without)) is not None:
                few, failure = without, other
        size //= 2
    return few, failure


# --- what operations are drawn from ---------------------------------------------------------------


def weighted(rng: random.Random, choices: dict[Callable[[], Operation], float]) -> Operation:
    """One of some operations, each as often as its weight says."""
    (chosen,) = rng.choices(list(choices), list(choices.values()))
    return chosen()


def some(rng: random.Random) -> list[int]:
    """Some environments, in any order."""
    return rng.sample(range(NUM_ENVS), rng.randint(1, NUM_ENVS))


def a_seed(rng: random.Random, count: int = NUM_ENVS) -> Any:
    """A seed for so many environments, or none."""
    seeds = [rng.choice([None, rng.randrange(100)]) for _ in range(count)]
    return rng.choice([None, None, rng.randrange(100), seeds])


def actions(rng: random.Random, fails: float = 0.0, count: int = NUM_ENVS) -> Any:
    """An action for each environment, one of which raises, with this probability."""
    drawn = [rng.randrange(TalliedEnv.FAIL) for _ in range(count)]
    if rng.random() < fails:
        drawn[rng.randrange(count)] = TalliedEnv.FAIL
    return np.array(drawn) if rng.random() < 0.7 else drawn


def a_call(rng: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A method that all environments have, or only those that are wrapped, or none."""
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
    """An attribute that all environments have, or only those that are wrapped, or none."""
    return rng.choice(["level", "level", "doubled", "touched", "layer", "missing"])


def a_value(rng: random.Random) -> Any:
    """A value of an attribute that is not one for each."""
    return rng.choice([rng.randrange(100), rng.random(), "text", {"a": [1, 2]}, None])


def values(rng: random.Random, count: int = NUM_ENVS) -> Any:
    """One value for all, or one for each of so many environments."""
    each = [a_value(rng) for _ in range(count)]
    return rng.choice([a_value(rng), each, tuple(each)])


@contextlib.contextmanager
def closing(beside: LockstepPair) -> Iterator[LockstepPair]:
    """Closes both in the end, if they are not."""
    try:
        yield beside
    finally:
        beside.envs.close()
        beside.reference.close()
