"""What a message consists of, and what its parts are called.

A message is a tree of dicts, lists, strings, numbers and arrays; its parts are nodes. JSON and
msgpack carry the same tree, and nothing is ever pickled:

- An **array** whose dtype and shape both sides know from a space is a nested list in JSON. In
  msgpack it is ``{"$": "array", "dtype": "float32", "shape": [2, 4], "data": bytes}``, with raw
  little-endian bytes in C order. Either side takes either.
- **Any other value** (an info, an argument, a result) is itself where JSON has it. What JSON lacks
  is a dict with a tag under ``"$"``: tuples, bytes, integers beyond 64 bits, numbers that are not
  finite, NumPy's scalars and arrays, sets, graphs, and dicts whose keys are not strings.

Decoding is strict: what is not exactly of these forms is a :class:`WireError`, whatever it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "ATOMS",
    "FIELDS",
    "INTS",
    "MAX_DEPTH",
    "NON_FINITE",
    "TAG",
    "WireError",
    "check_fields",
    "non_finite_name",
    "shortened",
]

MAX_DEPTH = 64
"""How deep values may be nested."""

ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
"""The types whose values are nodes themselves."""

INTS = range(-(2**63), 2**64)
"""The integers that are."""

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The floats that JSON lacks, by the strings that stand for them."""

TAG = "$"
FIELDS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("dict", "frozenset", "set", "tuple"), ("items",)),
    **dict.fromkeys(("bytes", "float", "int"), ("data",)),
    "array": ("dtype", "shape", "data"),
    "graph": ("nodes", "edges", "edge_links"),
    "infos": ("count", "columns"),
    "scalar": ("dtype", "data"),
}
"""What a dict with a tag has besides, by tag."""

_KEYS = {tag: {TAG, *fields} for tag, fields in FIELDS.items()}


class WireError(ValueError):
    """A message, or a part of it, is not of the form it has to be."""


def check_fields(node: Mapping[Any, Any], tag: str) -> None:
    """Raises unless a dict has a tag and what belongs to it."""
    if node.get(TAG) != tag or node.keys() != _KEYS[tag]:
        raise WireError(f"expected {tag!r} with {', '.join(FIELDS[tag])} and nothing else")


def non_finite_name(value: float) -> str:
    """The string for a float that is not finite."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def shortened(value: Any) -> str:
    """A value for an error, cut short: it may be as long as a message."""
    if isinstance(value, int) and value not in INTS:
        return "an integer beyond 64 bits"
    if not isinstance(value, str | int | float | list | None):
        return f"a {type(value).__name__}"
    text = ascii(value) if not isinstance(value, list) else f"a list of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
