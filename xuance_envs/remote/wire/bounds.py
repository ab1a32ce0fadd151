"""Limits on the number of values in a message, and on the size of a reply."""

from __future__ import annotations

from typing import Any

import numpy as np

from xuance_envs.remote.wire.nodes import TaggedArray, WireError

BYTES_PER_VALUE = 9  # maximum encoded bytes of a number in msgpack

_SLICE = 1 << 20


class TooManyNodesError(WireError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"expected a message of at most {limit} values, lists and dicts")


class TooLargeError(Exception):
    """The reply would exceed the server's limit in bytes, or a worker's equal share of it."""

    def __init__(self, limit: int, workers: int = 1) -> None:
        super().__init__(limit, workers)

    def __str__(self) -> str:
        limit, workers = self.args
        share = f" ({limit // workers} for each of {workers} workers)" if workers > 1 else ""
        allowed = f"{limit} bytes that this server allows{share}"
        return f"the reply would exceed the {allowed}: request less at a time"


def payload_bytes(node: Any) -> int:
    """Return a lower bound of a value's encoded size; 0 unless it is an array, string or bytes."""
    if isinstance(node, TaggedArray):
        return node.array.nbytes
    return len(node) if isinstance(node, str | bytes) else 0


def object_bytes(value: Any) -> int:
    """Estimate the encoded size of an observation without a fixed shape, such as a text."""
    if isinstance(value, str | bytes):
        return BYTES_PER_VALUE + len(value)
    if isinstance(value, np.ndarray | np.generic):
        return BYTES_PER_VALUE + value.nbytes
    if isinstance(value, dict):
        return BYTES_PER_VALUE + sum(object_bytes(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple | set | frozenset):
        return BYTES_PER_VALUE + sum(map(object_bytes, value))
    return BYTES_PER_VALUE


class ObjectBudget:
    """Bytes of a worker's observations without a fixed shape, limited per reply."""

    def __init__(self, limit: int, workers: int = 1) -> None:
        self._limit = limit, workers
        self._share = limit // workers
        self._total = 0
        self._sizes: dict[int, int] = {}
        self._request = 0

    def begin(self, request: int) -> None:
        """Discard the sizes that earlier requests counted."""
        if request != self._request:
            self._request, self._total, self._sizes = request, 0, {}

    def forget(self, env: int) -> None:
        self.set(env, 0)

    def set(self, env: int, size: int) -> None:
        self._total += size - self.size_of(env)
        self._sizes[env] = size

    def size_of(self, env: int) -> int:
        return self._sizes.get(env, 0)

    def add(self, env: int, value: Any) -> None:
        """Count an observation; raise if the reply would be too large."""
        self.set(env, self.size_of(env) + object_bytes(value))
        if self._total > self._share:
            raise TooLargeError(*self._limit)


def check_json_nodes(data: bytes, limit: int) -> None:
    """Raise if commas and brackets in a JSON message suggest more than ``limit`` nodes."""
    count = 1
    for start in range(0, len(data), _SLICE):
        piece = data[start : start + _SLICE]
        count += sum(map(piece.count, (b",", b"[", b"{")))
        if count > limit:
            raise TooManyNodesError(limit)


def check_nodes(data: bytes, limit: int) -> None:
    """Raise if a msgpack message has more than ``limit`` nodes; ignore invalid msgpack."""
    position, count, end = 0, 0, len(data)
    while position < end:
        count += 1
        if count > limit:
            raise TooManyNodesError(limit)
        size = _SIZES[data[position]]
        if size > 0:
            position += size
        else:  # a length of -size bytes, then the data
            first = position + 1
            length = int.from_bytes(data[first : first - size], "big")
            position = first - size + length + _EXTENSION_TYPE_BYTES.get(data[position], 0)


# Size of a msgpack node by its first byte, or -n if the next n bytes contain its length.
_SIZES = [1] * 256  # small integers, None, bools, heads of small lists and dicts
_SIZES[0xA0:0xC0] = range(1, 33)  # short strings
for _first in (0xC4, 0xC7, 0xD9):  # bytes, extensions, strings
    _SIZES[_first : _first + 3] = [-1, -2, -4]
_SIZES[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]  # floats, integers
_SIZES[0xD4:0xD9] = [3, 4, 6, 10, 18]  # extensions of fixed sizes
_SIZES[0xDC:0xE0] = [3, 5, 3, 5]  # the heads of longer lists and dicts

# Bytes of the type of an extension, which are between its length and its data.
_EXTENSION_TYPE_BYTES = dict.fromkeys((0xC7, 0xC8, 0xC9), 1)
