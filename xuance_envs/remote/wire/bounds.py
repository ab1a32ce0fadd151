"""What a message may cost, found out before it costs it: its nodes, and keys that collide."""

from __future__ import annotations

from typing import Any

from xuance_envs.remote.wire.arrays import TaggedArray
from xuance_envs.remote.wire.nodes import TAG, WireError

__all__ = [
    "MAX_COLLIDING",
    "TooLargeError",
    "TooManyNodesError",
    "check_json_nodes",
    "check_keys",
    "check_nodes",
    "payload_bytes",
]

MAX_COLLIDING = 64
"""The most elements of a set, and keys of a dict, that may be other than strings and bytes.

Python hashes strings and bytes with a secret. Of numbers anybody can find thousands of one hash,
and a set of these takes a time that grows with the square of their count.
"""

_SLICE = 1 << 20
_HASHED = frozenset({"dict", "frozenset", "set"})


class TooManyNodesError(WireError):
    """A message has more parts than are taken."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"expected a message of at most {limit} values, lists and dicts")


class TooLargeError(Exception):
    """A message is larger than it may be when it is written."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the answer would be larger than the {limit} bytes this server allows: ask for less "
            "at a time"
        )


def payload_bytes(node: Any) -> int:
    """The bytes that a part of a message takes at least, where it is an array, string or bytes."""
    if isinstance(node, TaggedArray):
        return node.array.nbytes
    return len(node) if isinstance(node, str | bytes) else 0


def check_json_nodes(data: bytes, limit: int) -> None:
    """Raises where JSON could be more values, lists and dicts than so many.

    Commas and brackets within strings count, too, so that none need to be told apart.
    """
    count = 1
    for start in range(0, len(data), _SLICE):
        piece = data[start : start + _SLICE]
        count += sum(map(piece.count, (b",", b"[", b"{")))
        if count > limit:
            raise TooManyNodesError(limit)


def check_nodes(data: bytes, limit: int) -> None:
    """Raises where msgpack is more values, lists and dicts than so many.

    What is not msgpack is left to its decoder.
    """
    position, count, end = 0, 0, len(data)
    while position < end:
        count += 1
        if count > limit:
            raise TooManyNodesError(limit)
        size = _SIZES[data[position]]
        if size > 0:
            position += size
        else:  # so many bytes say how many follow, besides those that say of what
            first = position + 1
            length = int.from_bytes(data[first : first - size], "big")
            position = first - size + length + _EXTENSION_TYPE_BYTES.get(data[position], 0)


def _sizes() -> list[int]:
    """By a node's first byte the bytes until the next one; negative: bytes of a length."""
    sizes = [1] * 256  # small integers, None, bools, and the heads of small lists and dicts
    sizes[0xA0:0xC0] = range(1, 33)  # short strings
    for first, (least, count) in {
        0xC4: (-1, 3),  # bytes
        0xC7: (-1, 3),  # extensions
        0xD9: (-1, 3),  # strings
    }.items():
        sizes[first : first + count] = [least, 2 * least, 4 * least]
    sizes[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]  # floats, integers
    sizes[0xD4:0xD9] = [3, 4, 6, 10, 18]  # extensions of fixed sizes
    sizes[0xDC:0xE0] = [3, 5, 3, 5]  # the heads of longer lists and dicts
    return sizes


_SIZES = _sizes()
_EXTENSION_TYPE_BYTES = dict.fromkeys((0xC7, 0xC8, 0xC9), 1)
"""Bytes between a length and what it is the length of: the type of an extension."""


def check_keys(node: Any) -> None:
    """Raises where a set or a dict in a part of a message could be slow to make."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if type(node) is list:
            nodes.extend(node)
        elif type(node) is dict:
            nodes.extend(node.values())
            tag = node.get(TAG)
            if type(tag) is str and tag in _HASHED:
                _check_items(tag, node.get("items"))


def _check_items(tag: str, items: Any) -> None:
    if not isinstance(items, list) or len(items) <= MAX_COLLIDING:
        return
    keys = (item[0] if item and isinstance(item, list) else None for item in items)
    for key in keys if tag == "dict" else items:
        text = isinstance(key, dict) and key.get(TAG) == "bytes"
        if not text and type(key) is not str and type(key) is not bytes:
            raise WireError(
                f"{tag}: expected strings or bytes where there are more than {MAX_COLLIDING}, "
                f"got a {type(key).__name__} among {len(items)}"
            )
