"""JSON encoding in one call, or in pieces that each take a limited time."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.remote.wire.arrays import TaggedArray, as_nested_list
from xuance_envs.remote.wire.nodes import TAG
from xuance_envs.remote.wire.pieces import BLOCK, PieceWriter

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
    raise TypeError(f"cannot encode a value of type {type(value).__name__}")


encode_with_json = json.JSONEncoder(
    default=_encode_default, allow_nan=False, separators=(",", ":")
).encode


def encode_json(node: Any) -> bytes:
    """Encode a message. Non-finite floats are valid only in arrays and results of ``to_wire``."""
    if orjson is not None:
        try:
            return orjson.dumps(node, _encode_default)
        except TypeError:  # half of a surrogate pair in a string, which only json escapes
            pass
    return encode_with_json(node).encode()


class JsonWriter(PieceWriter):
    comma = b","
    leaf_costs: Mapping[type, Callable[[Any], int]] = {
        np.ndarray: lambda array: array.size,
        TaggedArray: lambda tagged: tagged.array.size,
        **dict.fromkeys((str, bytes), lambda text: len(text) >> 4),
    }
    encode = staticmethod(encode_json)

    @override
    def brackets(self, node: Any) -> tuple[bytes, bytes]:
        return (b"{", b"}") if isinstance(node, dict) else (b"[", b"]")

    @override
    def encode_key(self, key: str) -> bytes:
        return encode_json(key) + b":"

    @override
    def encode_items(self, items: Any) -> bytes:
        return encode_json(items)[1:-1]

    @override
    def write_leaf(self, node: Any) -> None:
        if isinstance(node, np.ndarray):
            self._array(node)
        elif isinstance(node, TaggedArray):
            self.add(encode_json({**node.head(), "data": 0})[:-2])
            self._array(node.array)
            self.add(b"}")
        else:  # a long string, or bytes
            self.count(len(node))
            self.add(encode_json(node))

    def _array(self, array: NDArray[Any]) -> None:
        if array.size <= BLOCK:
            self.add(encode_json(array))
            return
        rows = BLOCK if array.ndim == 1 else max(1, BLOCK * len(array) // array.size)
        self.add(b"[")
        for start in range(0, len(array), rows):
            if start:
                self.add(b",")
            if rows == 1:
                self._array(array[start])
            else:
                self.add(encode_json(array[start : start + rows])[1:-1])
        self.add(b"]")
