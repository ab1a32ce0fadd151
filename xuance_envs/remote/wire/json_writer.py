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
from xuance_envs.remote.wire.infos import InfoTable
from xuance_envs.remote.wire.nodes import ATOMS, TAG
from xuance_envs.remote.wire.values import to_wire


def _encode_default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return as_nested_list(value)
    if isinstance(value, TaggedArray):
        return value.as_nested_list()
    if isinstance(value, bytes):
        return {TAG: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, InfoTable):
        return [to_wire(info) for info in value.dicts()]
    raise TypeError(f"cannot encode a {type(value).__name__}")


encode_json = json.JSONEncoder(
    default=_encode_default, allow_nan=False, separators=(",", ":")
).encode


class JsonWriter:
    """Encoder of one message with a size limit; it encodes large parts in pieces."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._pieces: list[bytes] = []

    def write(self, message: Any) -> bytes:
        self._node(message)
        return b"".join(self._pieces)

    def _add(self, text: str) -> None:
        piece = text.encode()
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError(self._limit)
        self._pieces.append(piece)

    def _node(self, node: Any) -> None:
        if isinstance(node, np.ndarray):
            self._array(node)
        elif isinstance(node, TaggedArray):
            self._tagged(node)
        elif isinstance(node, InfoTable):
            self._list(to_wire(info) for info in node.dicts())
        elif isinstance(node, dict):
            self._dict(node)
        elif isinstance(node, list):
            self._list(node)
        else:
            if isinstance(node, str | bytes) and len(node) > self._limit:
                raise TooLargeError(self._limit)
            self._add(encode_json(node))

    def _dict(self, node: dict[str, Any]) -> None:
        if len(node) <= BLOCK and all(_is_small(item) for item in node.values()):
            self._add(encode_json(node))
            return
        self._add("{")
        for number, (key, item) in enumerate(node.items()):
            self._add(f"{',' if number else ''}{encode_json(key)}:")
            self._node(item)
        self._add("}")

    def _list(self, items: Iterable[Any]) -> None:
        self._add("[")
        small: list[Any] = []
        comma = ""
        for item in items:
            if _is_small(item) and len(small) < BLOCK:
                small.append(item)
                continue
            if small:
                self._add(comma + encode_json(small)[1:-1])
                comma = ","
            small = [item] if _is_small(item) else []
            if not small:
                self._add(comma)
                self._node(item)
                comma = ","
        if small:
            self._add(comma + encode_json(small)[1:-1])
        self._add("]")

    def _array(self, array: NDArray[Any]) -> None:
        if array.size <= BLOCK:
            self._add(encode_json(array))
        elif array.ndim == 1:
            self._add("[")
            for start in range(0, len(array), BLOCK):
                block = array[start : start + BLOCK]
                self._add(("," if start else "") + encode_json(block)[1:-1])
            self._add("]")
        else:
            self._add("[")
            for number, row in enumerate(array):
                if number:
                    self._add(",")
                self._array(row)
            self._add("]")

    def _tagged(self, node: TaggedArray) -> None:
        if node.array.size <= BLOCK:
            self._add(encode_json(node))
            return
        head = encode_json({**node.head(), "data": 0})
        self._add(head[:-2])
        self._array(node.array)
        self._add("}")


def _is_small(item: Any) -> bool:
    """Return whether encoding a value takes negligible time."""
    kind = type(item)
    if kind is str or kind is bytes:
        return len(item) <= BLOCK
    if kind is dict:
        return len(item) <= 64 and all(
            type(value) in ATOMS and _is_small(value) for value in item.values()
        )
    return kind in ATOMS
