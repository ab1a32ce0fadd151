"""Comparison of values by content and shared references, with the same result in every process.

Sets are compared regardless of their order, functions by their code, and classes by their names.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, shortened, type_name, type_phrase
from xuance_envs.state.handlers import handler_of
from xuance_envs.state.rebuild import address_of
from xuance_envs.state.values.graph import (
    Node,
    Step,
    is_atomic_sequence,
    node,
    step_text,
)
from xuance_envs.state.values.held_values import is_resource
from xuance_envs.state.values.reducers import memory_owner
from xuance_envs.state.values.tensors import is_tensor, storage_address

_DIGEST = 12
_MAX_TEXT = 200
_MIN_COMPACT = 64
"""Minimum length of sequences of numbers or strings that are compared as a whole."""

_MAX_NESTED = 50_000
"""Maximum number of elements of sets within sets, so that a comparison ends in bounded time."""

_Steps = tuple[Any, Step | None] | None
"""Path as a linked list: the path to the container, and the step from there."""


class ValueTokens:
    """Comparable items (tokens) of a value and everything it refers to, in a fixed order.

    ``known`` maps ``id(value)`` to the token of each object that is not traversed.
    """

    def __init__(
        self, known: Mapping[int, Any] | None = None, nested: Iterator[int] | None = None
    ) -> None:
        self._known = known or {}
        self._nested = nested  # counts down the elements of sets within a set
        self._numbers: dict[int, Any] = {}
        self._memory: dict[int, tuple[int, int]] = {}
        self._alive: list[Any] = []

    def of(self, value: Any) -> Iterator[tuple[Any, _Steps, Any]]:
        """Yield each token, the steps to its value, and the value that it describes."""
        waiting: list[tuple[Any, _Steps]] = [(value, None)]
        while waiting:
            value, steps = waiting.pop()
            if id(value) in self._known:
                yield self._known[id(value)], steps, value
                continue
            number = self._numbers.get(id(value))
            if number is not None:
                yield number, steps, value
                continue
            found = self._node(value, steps)
            if found.is_shared:
                self._numbers[id(value)] = "same", len(self._numbers)
            self._alive.append(value)  # a temporary's id could be used again
            head = found.head
            if found.is_ordered:
                waiting += [(part, (steps, step)) for step, part in reversed([*found.parts])]
            else:
                head = (head, sorted(self._element(item, steps) for _, item in found.parts))
            yield head, steps, value

    def _element(self, item: Any, steps: _Steps) -> bytes:
        if self._nested is not None and next(self._nested, None) is None:
            raise FaultError(path_text(steps), "too many nested sets of objects to compare")
        nested = iter(range(_MAX_NESTED)) if self._nested is None else self._nested
        return digest(item, ChainMap(self._numbers, self._known), nested)  # type: ignore[arg-type]

    def _node(self, value: Any, steps: _Steps) -> Node:
        kind: Any = type(value)
        if is_resource(value):
            return Node(("resource", type_name(value)))
        handler = handler_of(kind)
        if handler is not None:
            return Node(("state of", type_name(value)), [(None, handler.save(value, None))])
        if kind in (list, tuple) and len(value) >= _MIN_COMPACT and is_atomic_sequence(value):
            return Node((kind.__name__, [node(item).head for item in value]), (), kind is list)
        try:
            found = node(value)
        except FaultError as fault:
            raise FaultError(path_text(steps), fault.reason) from None
        except Exception as error:
            reason = f"{type_phrase(value)} cannot be compared: {error}"
            raise FaultError(path_text(steps), reason) from error
        if isinstance(value, np.ndarray) and value.size:
            found = found._replace(head=(found.head, self._place(value), value.strides))
        return found

    def _place(self, value: Any) -> tuple[int, int]:
        """Return a number for an array's memory block, and the array's position in it."""
        owner = memory_owner(value)
        self._alive.append(owner)
        address = address_of(value)
        key = storage_address(owner) if is_tensor(owner) else id(owner)
        number, first = self._memory.setdefault(key, (len(self._memory), address))
        return number, address - first


def digest(
    value: Any, known: Mapping[int, Any] | None = None, nested: Iterator[int] | None = None
) -> bytes:
    """Return a digest of a value's content, which is the same in every process."""
    found = hashlib.blake2b(digest_size=_DIGEST)
    for token, _, _ in ValueTokens(known, nested).of(value):
        found.update(repr(token).encode())
    return found.digest()


def first_difference(
    one: Any,
    other: Any,
    known: Mapping[int, Any] | None = None,
    other_known: Mapping[int, Any] | None = None,
) -> tuple[str, str, str] | None:
    """Return where two values first differ, as path and description of both, or None."""
    nothing: Any = (None, None, None)
    found = zip_longest(
        ValueTokens(known).of(one), ValueTokens(other_known).of(other), fillvalue=nothing
    )
    for (token, steps, value), (other_token, other_steps, other_value) in found:
        if token != other_token or (steps and steps[1]) != (other_steps and other_steps[1]):
            path = path_text(steps if token is not None else other_steps)
            return path, abbreviated(value), abbreviated(other_value)
    return None


def path_text(steps: _Steps) -> str:
    """Return a path of attributes and indices in Python's notation, such as ``.a[0]``."""
    texts = []
    while steps is not None:
        steps, step = steps
        texts.append(step_text(step))
    return "".join(reversed(texts))


def abbreviated(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = type_phrase(value)
    return shortened(text, _MAX_TEXT)
