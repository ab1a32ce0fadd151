"""Structure of messages: trees of dicts, lists, strings, numbers and arrays, called nodes.

JSON and msgpack encode the same tree; nothing is pickled. An **array** whose dtype and shape follow
from a space is a nested list in JSON. In msgpack it is ``{"$": "array", "dtype": "float32",
"shape": [2, 4], "data": bytes}``, with little-endian bytes in C order. Both sides accept both
forms. **Values that JSON lacks** are dicts with a tag under ``"$"``: tuples, bytes, large integers,
non-finite numbers, NumPy values, sets, graphs, and dicts with keys other than strings. Decoding
raises for any other form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

MAX_DIMENSIONS = 32
MAX_LENGTH = 2**40  # of an axis; the size of the message limits the array's data

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LITTLE_ENDIAN = {name: dtype.newbyteorder("<") for name, dtype in DTYPES.items()}


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
    if not isinstance(node, list) or len(node) != count:
        expected = f"a list of {counted(count, unit)}{owner}"
        raise WireError(f"expected {expected}, got {shortened(node)}")
    return node


def finite_or_name(value: float) -> float | str:
    """Return a finite number, or the name of a non-finite one."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def shortened(value: Any) -> str:
    """Describe a value for an error message, in at most 60 characters."""
    if isinstance(value, int) and value not in INTS:
        return "an integer of more than 64 bits"
    if not isinstance(value, str | int | float | list | None):
        return f"a value of type {type(value).__name__}"
    text = ascii(value) if not isinstance(value, list) else f"a list of length {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."


class TaggedArray:
    """Array that is sent with its dtype and shape in both formats.

    It is no dataclass: orjson would encode one by its fields, without the dtype and the shape.
    """

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array


def as_nested_list(array: NDArray[Any]) -> Any:
    """Convert an array to lists for JSON, and non-finite numbers to strings."""
    if array.dtype.kind == "f" and not (is_finite := np.isfinite(array)).all():
        spelled = array.astype(object)
        spelled[~is_finite] = list(map(finite_or_name, array[~is_finite].tolist()))
        return spelled.tolist()
    return array.tolist()


def as_raw_bytes(array: NDArray[Any]) -> dict[str, Any]:
    """Convert an array to dtype, shape and bytes for msgpack."""
    head = head_of(array)
    little = array.astype(_LITTLE_ENDIAN[head["dtype"]], order="C", copy=False)
    return {**head, "data": little.tobytes()}


def head_of(array: NDArray[Any]) -> dict[str, Any]:
    name = _DTYPE_NAMES.get(array.dtype) or array.dtype.name  # NumPy computes dtype.name
    return {TAG: "array", "dtype": name, "shape": list(array.shape)}


def dtype_from_wire(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in DTYPES:
        raise WireError(f"expected one of the dtypes {', '.join(DTYPES)}, got {shortened(name)}")
    return DTYPES[name]


def array_from_wire(node: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Decode an array of exactly this dtype and shape, from either format."""
    if not isinstance(node, dict):
        return _from_nested_list(node, dtype, shape)
    check_fields(node, "array")
    array = tagged_array(node)
    if array.dtype != dtype and array.dtype == dtype.newbyteorder("="):
        array = array.astype(dtype)  # messages have one byte order
    if array.dtype != dtype or array.shape != shape:
        raise WireError(
            f"expected an array of dtype {dtype} and shape {shape}, "
            f"got dtype {array.dtype} and shape {array.shape}"
        )
    return array


def shape_from_wire(node: Any) -> tuple[int, ...]:
    if not isinstance(node, list) or len(node) > MAX_DIMENSIONS:
        raise WireError(f"expected a shape of at most {MAX_DIMENSIONS} axes, got {shortened(node)}")
    for length in node:
        if type(length) is not int or not 0 <= length <= MAX_LENGTH:
            got = shortened(length)
            raise WireError(f"expected a shape with axes of length 0 to {MAX_LENGTH}, got {got}")
    return tuple(node)


def tagged_array(node: Mapping[str, Any]) -> NDArray[Any]:
    """Decode an array whose fields have been checked."""
    dtype, shape = dtype_from_wire(node["dtype"]), shape_from_wire(node["shape"])
    data = node["data"]
    if not isinstance(data, bytes):
        return _from_nested_list(data, dtype, shape)
    size = math.prod(shape) * dtype.itemsize
    if (given := len(data)) != size:
        expected = f"{counted(size, 'byte')} for dtype {dtype} and shape {shape}"
        raise WireError(f"expected {expected}, got {given}")
    if dtype.kind == "b":
        check_bools(data)
    if not size:
        return _empty(dtype, shape)
    array: NDArray[Any] = np.ndarray(shape, _LITTLE_ENDIAN[_DTYPE_NAMES[dtype]], data)
    return array.astype(dtype)  # a writable copy


def check_bools(data: bytes) -> None:
    if others := data.strip(b"\x00\x01"):
        raise WireError(f"expected only bytes 0 and 1 in an array of bools, got {others[0]}")


def tagged_scalar(node: Mapping[str, Any]) -> Any:
    return _from_nested_list(node["data"], dtype_from_wire(node["dtype"]), ())[()]


def _from_nested_list(node: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    level = [node]
    for axis, length in enumerate(shape):
        for item in level:
            if not isinstance(item, list) or len(item) != length:
                got = f"{len(item)}" if isinstance(item, list) else shortened(item)
                raise WireError(
                    f"expected nested lists of shape {shape}: {counted(length, 'item')} along axis "
                    f"{axis}, got {got}"
                )
        level = list(itertools.chain.from_iterable(level))
    if not level:
        return _empty(dtype, shape)
    return _numbers(level, dtype).reshape(shape)


def _empty(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        return np.zeros(shape, dtype)
    except ValueError as error:  # one axis is empty, but the product of the others overflows
        raise WireError(f"shape {shape}: {error}") from None


def _numbers(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    kind, name = _KINDS[dtype.kind]
    if {*map(type, values)} != {kind}:
        values = [_converted(value, kind, name) for value in values]
    if kind is int:
        limits = np.iinfo(dtype)
        for value in (min(values), max(values)):
            if not limits.min <= value <= limits.max:
                raise WireError(f"expected integers that fit {dtype}, got {shortened(value)}")
    if kind is not float:
        return np.array(values, dtype)
    array = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.itemsize < 8 and (over := np.isinf(cast) != np.isinf(array)).any():
        raise WireError(f"expected numbers that fit {dtype}, got {array[over][0]:g}")
    return cast


def _converted(value: Any, kind: type, name: str) -> Any:
    """Convert a value to the expected type if it is the same number, such as 2.0 to 2."""
    given = type(value)
    if given is kind:
        return value
    if kind is bool and given is int and value in (0, 1):
        return bool(value)
    if kind is int and given is float and value.is_integer():
        return int(value)
    if kind is float and given is int:
        with suppress(OverflowError):
            return float(value)
    if kind is float and given is str and value in NON_FINITE:
        return NON_FINITE[value]
    raise WireError(f"expected {name}, got {shortened(value)}")


# Types and names of numbers in nested lists, by the kind of dtype.
_KINDS = {"b": (bool, "bools"), "f": (float, "numbers")} | dict.fromkeys("iu", (int, "integers"))
