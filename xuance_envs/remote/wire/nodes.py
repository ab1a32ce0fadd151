"""Structure of messages: trees of dicts, lists, strings, numbers and arrays, called nodes.

JSON and msgpack encode the same tree; nothing is pickled. An **array** whose dtype and shape follow
from a space is a nested list in JSON. In msgpack it is ``{"$": "array", "dtype": "float32",
"shape": [2, 4], "data": bytes}``, with little-endian bytes in C order. Both sides accept both
forms. **Values that JSON lacks** are dicts with a tag under ``"$"``: tuples, bytes, large integers,
non-finite numbers, NumPy values, sets, graphs, and dicts with keys other than strings. Decoding
raises for any other form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from xuance_envs.errors import counted

MAX_DEPTH = 64
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})  # sent without conversion
INTS = range(-(2**63), 2**64)  # both formats can encode these

# Floats that JSON lacks, by their names in messages.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

TAG = "$"
# Fields of a tagged dict by its tag, except the tag itself.
FIELDS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("dict", "frozenset", "set", "tuple"), ("items",)),
    **dict.fromkeys(("bytes", "float", "int"), ("data",)),
    "array": ("dtype", "shape", "data"),
    "graph": ("nodes", "edges", "edge_links"),
    "scalar": ("dtype", "data"),
}
_KEYS = {tag: {TAG, *fields} for tag, fields in FIELDS.items()}


class WireError(ValueError):
    pass


class LazyList:
    """List of nodes that are created while the message is encoded, so that few are in memory."""

    def __init__(self, nodes: Iterable[Any], count: int) -> None:
        self._nodes = nodes
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return self._count


def check_fields(node: Mapping[Any, Any], tag: str) -> None:
    """Raise unless a dict has this tag and exactly its fields."""
    if node.get(TAG) != tag or node.keys() != _KEYS[tag]:
        raise WireError(
            f"expected a dict tagged {tag!r} with only the fields {', '.join(FIELDS[tag])}, "
            f"got the keys {list(node)[:8]!a:.100}"
        )


def checked_list(node: Any, count: int, unit: str, owner: str = "") -> list[Any]:
    """Return a node that is a list of this length; raise for others."""
    if not isinstance(node, list) or len(node) != count:
        expected = f"a list of {counted(count, unit)}{owner}"
        raise WireError(f"expected {expected}, got {shortened(node)}")
    return node


def non_finite_name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def shortened(value: Any) -> str:
    """Describe a value for an error message, in at most 60 characters."""
    if isinstance(value, int) and value not in INTS:
        return "an integer of more than 64 bits"
    if not isinstance(value, str | int | float | list | None):
        return f"a value of type {type(value).__name__}"
    text = ascii(value) if not isinstance(value, list) else f"a list of length {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
