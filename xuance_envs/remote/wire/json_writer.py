"""JSON encoding in one call, or in pieces that each take a limited time."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.remote.wire.arrays import TaggedArray, as_nested_list
from xuance_envs.remote.wire.bounds import BLOCK, TooLargeError
from xuance_envs.remote.wire.nodes import TAG, LazyList

try:
    import orjson
except ImportError:  # there is no wheel for this system
    orjson = None  # type: ignore[assignment]


def _encode_default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return as_nested_list(value)
    if isinstance(value, TaggedArray):
        return value.as_nested_list()
    if isinstance(value, bytes):
        return {TAG: "bytes", "data": base64.b64encode(value).decode()}
    raise TypeError(f"cannot encode a {type(value).__name__}")


encode_with_json = json.JSONEncoder(
    default=_encode_default, allow_nan=False, separators=(",", ":")
).encode


def encode_json(node: Any) -> bytes:
    """Encode a message, whose non-finite floats must be in arrays or results of ``to_wire``."""
    if orjson is not None:
        try:
            return orjson.dumps(node, _encode_default)
        except TypeError:  # half of a surrogate pair in a string, which only json escapes
            pass
    return encode_with_json(node).encode()


class JsonWriter:
    """Encoder of one message with a size limit; it encodes large parts in pieces."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._pieces: list[bytes] = []

    def write(self, message: Any) -> bytes:
        self._node(message)
        return b"".join(self._pieces)

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError(self._limit)
        self._pieces.append(piece)

    def _node(self, node: Any) -> None:
        if _cost(node) <= BLOCK:
            self._add(encode_json(node))
        elif isinstance(node, np.ndarray):
            self._array(node)
        elif isinstance(node, TaggedArray):
            self._add(encode_json({**node.head(), "data": 0})[:-2])
            self._array(node.array)
            self._add(b"}")
        elif isinstance(node, dict):
            for number, (key, item) in enumerate(node.items()):
                self._add((b"," if number else b"{") + encode_json(key) + b":")
                self._node(item)
            self._add(b"}")
        elif isinstance(node, list | LazyList):
            self._list(node)
        else:  # a long string, or bytes
            if len(node) > self._limit:
                raise TooLargeError(self._limit)
            self._add(encode_json(node))

    def _list(self, items: Iterable[Any]) -> None:
        self._add(b"[")
        block: list[Any] = []
        cost, comma = 0, b""
        for item in items:
            cost += 1 + (more := _cost(item))
            if cost > BLOCK and block:
                self._add(comma + encode_json(block)[1:-1])
                block, cost, comma = [], more, b","
            if more > BLOCK:
                self._add(comma)
                self._node(item)
                cost, comma = 0, b","
            else:
                block.append(item)
        if block:
            self._add(comma + encode_json(block)[1:-1])
        self._add(b"]")

    def _array(self, array: NDArray[Any]) -> None:
        if array.size <= BLOCK:
            self._add(encode_json(array))
            return
        rows = BLOCK if array.ndim == 1 else max(1, BLOCK * len(array) // array.size)
        self._add(b"[")
        for start in range(0, len(array), rows):
            if start:
                self._add(b",")
            if rows == 1:
                self._array(array[start])
            else:
                self._add(encode_json(array[start : start + rows])[1:-1])
        self._add(b"]")


def _cost(node: Any) -> int:
    """Estimate the cost of a node, in values to encode; above BLOCK, only a lower bound."""
    nodes, cost = [node], 0
    while nodes and cost <= BLOCK:
        node = nodes.pop()
        kind = type(node)
        if kind is dict:
            cost += len(node)
            nodes.extend(node.values())
        elif kind is list:
            cost += len(node)
            if len(node) <= BLOCK:
                nodes.extend(node)
        elif kind is np.ndarray:
            cost += node.size
        elif kind is TaggedArray:
            cost += node.array.size
        elif kind is str or kind is bytes:
            cost += len(node) >> 4
        elif kind is LazyList:
            cost += BLOCK + 1
    return cost
