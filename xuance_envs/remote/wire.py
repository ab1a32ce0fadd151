"""What travels between client and server: messages as JSON or msgpack, never pickle.

A message is a tree of dicts, lists, strings, numbers and arrays. Both forms carry the same tree:

- An **array** whose dtype and shape both sides know from a space is a nested list in JSON. In
  msgpack it is ``{"$": "array", "dtype": "float32", "shape": [2, 4], "data": bytes}``, with raw
  little-endian bytes in C order. Either side takes either.
- **Any other value** (an info, an argument, a result) is itself where JSON has it. What JSON lacks
  is a dict with a tag under ``"$"``: tuples, bytes, integers beyond 64 bits, numbers that are not
  finite, NumPy's scalars and arrays, sets, graphs, and dicts whose keys are not strings.

Decoding is strict: what is not exactly of these forms is a :class:`WireError`, whatever it is.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance
from numpy.typing import NDArray

from xuance_envs.engine.infos import Columns

__all__ = [
    "Form",
    "InfoTable",
    "WireError",
    "array_from_wire",
    "dumps",
    "from_wire",
    "info_table_from_wire",
    "infos_from_wire",
    "loads",
    "to_wire",
]

MAX_DEPTH = 64
"""How deep values may be nested."""

MAX_DIMENSIONS = 32
MAX_LENGTH = 2**40
"""The longest axis an array may claim; what it really holds is bounded by the message's size."""

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
"""The dtypes that travel, by the names they have in messages."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LITTLE_ENDIAN = {name: dtype.newbyteorder("<") for name, dtype in DTYPES.items()}

_TAG = "$"
_FIELDS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("dict", "frozenset", "set", "tuple"), ("items",)),
    **dict.fromkeys(("bytes", "float", "int"), ("data",)),
    "array": ("dtype", "shape", "data"),
    "graph": GraphInstance._fields,
    "infos": ("count", "columns"),
    "scalar": ("dtype", "data"),
}
"""What a dict with a tag has besides, by tag."""

_KEYS = {tag: {_TAG, *fields} for tag, fields in _FIELDS.items()}
_PYTHONS: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}
_KINDS: dict[str, type] = {
    **{kind.__name__: kind for kind in _PYTHONS},
    **{f"numpy.{name}": dtype.type for name, dtype in DTYPES.items()},
}
"""The types of infos in a table, by their names in messages."""

_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})
_INTS = range(-(2**63), 2**64)


class WireError(ValueError):
    """A message, or a part of it, is not of the form it has to be."""


class Form(Enum):
    """How a message is written; the value is its content type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


class Tagged:
    """An array in a message that says its dtype and shape itself, in both forms."""

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array


class InfoTable:
    """Infos that are numbers of one type by key: a list of dicts in JSON, columns in msgpack.

    Args:
        columns: by key, the values' type, the values, and where there are any.
        count: how many infos they are.
    """

    __slots__ = ("columns", "count")

    def __init__(self, columns: Columns, count: int) -> None:
        self.columns = columns
        self.count = count

    def dicts(self) -> list[dict[str, Any]]:
        """The infos."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.count)]
        for key, (kind, values, mask) in self.columns.items():
            scalars = values.tolist() if kind in _PYTHONS else list(values)
            for position in mask.nonzero()[0].tolist():
                infos[position][key] = scalars[position]
        return infos


# -- messages ---------------------------------------------------------------------------


def dumps(message: Any, form: Form) -> bytes:
    """Writes a message whose arrays may be NumPy's or :class:`Tagged`."""
    if form is Form.JSON:
        text = json.dumps(message, default=_json_part, allow_nan=False, separators=(",", ":"))
        return text.encode()
    packed: bytes = _msgpack().packb(
        message, default=_msgpack_part, unicode_errors="surrogatepass", use_bin_type=True
    )
    return packed


def loads(data: bytes, form: Form) -> Any:
    """Reads a message.

    Raises:
        WireError: it is not JSON, or not msgpack.
    """
    try:
        if form is Form.JSON:
            return json.loads(data, parse_constant=_refused_constant)
        return _msgpack().unpackb(
            data, raw=False, unicode_errors="surrogatepass", ext_hook=_refused_extension
        )
    except RecursionError:
        raise WireError(f"the {form.name} message is nested too deep") from None
    except WireError:
        raise
    except Exception as error:  # msgpack's own are many, and not all of one kind
        raise WireError(f"the message is not {form.name}: {error}") from None


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            'messages in msgpack need the package of that name: pip install "xuance_envs[remote]"'
        ) from error
    return msgpack


def _refused_constant(name: str) -> Any:
    raise WireError(f'{name} is not JSON; write it as a string, "{name}"')


def _refused_extension(code: int, data: bytes) -> Any:
    raise WireError(f"msgpack's extension types are not used here, got one of type {code}")


def _json_part(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _as_nested_list(value)
    if isinstance(value, Tagged):
        return {**_array_head(value.array), "data": _as_nested_list(value.array)}
    if isinstance(value, bytes):
        return {_TAG: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, InfoTable):
        return [to_wire(info) for info in value.dicts()]
    raise TypeError(f"a {type(value).__name__} in a message")


def _msgpack_part(value: Any) -> Any:
    if isinstance(value, Tagged):
        value = value.array
    if isinstance(value, np.ndarray):
        head = _array_head(value)
        little = value.astype(_LITTLE_ENDIAN[head["dtype"]], order="C", copy=False)
        return {**head, "data": little.tobytes()}
    if isinstance(value, InfoTable):
        columns = [
            [key, _KIND_NAMES[kind], values, None if mask.all() else mask]
            for key, (kind, values, mask) in value.columns.items()
        ]
        return {_TAG: "infos", "count": value.count, "columns": columns}
    raise TypeError(f"a {type(value).__name__} in a message")


def _array_head(array: NDArray[Any]) -> dict[str, Any]:
    # NumPy works a dtype's name out whenever it is asked.
    name = _DTYPE_NAMES.get(array.dtype) or array.dtype.name
    return {_TAG: "array", "dtype": name, "shape": list(array.shape)}


def _as_nested_list(array: NDArray[Any]) -> Any:
    nested = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _spelled(nested)
    return nested


def _spelled(value: Any) -> Any:
    """Nested floats, with strings for those that JSON has no numbers for."""
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    return value if math.isfinite(value) else _spell(value)


def _spell(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


# -- arrays -----------------------------------------------------------------------------


def dtype_from_wire(name: Any) -> np.dtype[Any]:
    """The dtype of a name in a message.

    Raises:
        WireError: there is none, or it does not travel.
    """
    if not isinstance(name, str) or name not in DTYPES:
        raise WireError(f"expected a dtype out of {', '.join(DTYPES)}, got {_shown(name)}")
    return DTYPES[name]


def array_from_wire(node: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of exactly this dtype and shape, from either of the forms it may have.

    Args:
        node: a nested list, or the tagged form with raw bytes.
        dtype: the dtype it has to have.
        shape: the shape it has to have.

    Returns:
        An array of its own memory.

    Raises:
        WireError: another dtype, another shape, or a value that does not fit.
    """
    if not isinstance(node, dict):
        return _from_nested_list(node, dtype, shape)
    array = _tagged_array(node)
    if array.dtype != dtype or array.shape != shape:
        raise WireError(
            f"expected an array of dtype {dtype} and shape {shape}, "
            f"got dtype {array.dtype} and shape {array.shape}"
        )
    return array


def shape_from_wire(node: Any) -> tuple[int, ...]:
    """A shape.

    Raises:
        WireError: it is not a list of lengths.
    """
    if not isinstance(node, list) or len(node) > MAX_DIMENSIONS:
        raise WireError(f"expected a shape of up to {MAX_DIMENSIONS} lengths, got {_shown(node)}")
    for length in node:
        if type(length) is not int or not 0 <= length <= MAX_LENGTH:
            raise WireError(
                f"expected lengths from 0 to {MAX_LENGTH} in a shape, got {_shown(length)}"
            )
    return tuple(node)


def _tagged_array(node: Any) -> NDArray[Any]:
    _check_fields(node, "array")
    dtype, shape = dtype_from_wire(node["dtype"]), shape_from_wire(node["shape"])
    data = node["data"]
    if not isinstance(data, bytes):
        return _from_nested_list(data, dtype, shape)
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise WireError(
            f"expected {size} bytes for dtype {dtype} and shape {shape}, got {len(data)}"
        )
    if dtype.kind == "b" and data.strip(b"\x00\x01"):
        raise WireError("expected bytes 0 and 1 in an array of bools")
    if not size:
        return _empty(dtype, shape)
    array = np.frombuffer(data, _LITTLE_ENDIAN[node["dtype"]]).reshape(shape)
    return array.astype(dtype)  # of its own memory, which can be written to


def _from_nested_list(node: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    level = [node]
    for axis, length in enumerate(shape):
        for item in level:
            if not isinstance(item, list) or len(item) != length:
                got = f"{len(item)}" if isinstance(item, list) else _shown(item)
                raise WireError(
                    f"expected nested lists of shape {shape}: {length} along axis {axis}, got {got}"
                )
        level = list(itertools.chain.from_iterable(level))
    if not level:
        return _empty(dtype, shape)
    return _NUMBERS[dtype.kind](level, dtype).reshape(shape)


def _empty(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        return np.zeros(shape, dtype)
    except ValueError as error:  # no elements, but axes too long to multiply
        raise WireError(f"shape {shape}: {error}") from None


def _bools(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    for value in values:
        if type(value) is not bool and not (type(value) is int and value in (0, 1)):
            raise WireError(f"expected bools, got {_shown(value)}")
    return np.array(values, dtype)


def _integers(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if any(type(value) is not int for value in values):
        values = [_integer(value) for value in values]
    low, high = min(values), max(values)
    limits = np.iinfo(dtype)
    if low < limits.min or high > limits.max:
        raise WireError(
            f"expected integers that fit {dtype}, got {_shown(low if low < limits.min else high)}"
        )
    return np.array(values, dtype)


def _integer(value: Any) -> int:
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is int:
        return value
    raise WireError(f"expected integers, got {_shown(value)}")


def _floats(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if any(type(value) is not float for value in values):
        values = [_float(value) for value in values]
    array = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.itemsize < 8 and (np.isinf(cast) != np.isinf(array)).any():
        raise WireError(f"expected numbers that fit {dtype}, got one beyond")
    return cast


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise WireError("expected numbers, got an integer too large for one") from None
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise WireError(f"expected numbers, got {_shown(value)}")


_NUMBERS: dict[str, Callable[[Sequence[Any], np.dtype[Any]], NDArray[Any]]] = {
    "b": _bools,
    "i": _integers,
    "u": _integers,
    "f": _floats,
}


# -- any other value --------------------------------------------------------------------


def to_wire(value: Any, depth: int = 0) -> Any:
    """Any value that can travel, as a part of a message.

    Instances of subclasses travel as what they derive from: an ``OrderedDict`` as a dict.

    Raises:
        WireError: it cannot travel.
    """
    kind = type(value)
    if kind is bool or kind is str or value is None or kind is bytes:
        return value
    if kind is int:
        return value if value in _INTS else {_TAG: "int", "data": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "data": _spell(value)}
    if depth >= MAX_DEPTH:
        raise WireError(
            f"values nested deeper than {MAX_DEPTH}, or within themselves, cannot travel"
        )
    for base, encode in _ENCODERS:
        if isinstance(value, base):
            return encode(value, depth + 1)
    if hasattr(value, "__array__"):
        return to_wire(np.asarray(value), depth + 1)
    raise WireError(f"a {kind.__module__}.{kind.__qualname__} cannot travel")


def from_wire(node: Any, depth: int = 0) -> Any:
    """The value of a part of a message: the reverse of :func:`to_wire`.

    Raises:
        WireError: it is not of any form that :func:`to_wire` gives.
    """
    kind = type(node)
    if kind is not dict and kind is not list:
        if kind in _ATOMS:
            return node
        raise WireError(f"expected a value, got a {kind.__name__}")
    if depth >= MAX_DEPTH:
        raise WireError(f"expected values nested at most {MAX_DEPTH} deep")
    if kind is list:
        return [from_wire(item, depth + 1) for item in node]
    if _TAG not in node:
        decoded = {}
        for key, item in node.items():
            if type(key) is not str:
                raise WireError(f"expected strings as keys, got {_shown(key)}")
            decoded[key] = item if type(item) in _ATOMS else from_wire(item, depth + 1)
        return decoded
    tag = node[_TAG]
    if type(tag) is not str or tag not in _DECODERS:
        raise WireError(f"expected a tag out of {', '.join(_DECODERS)}, got {_shown(tag)}")
    return _DECODERS[tag](node, depth + 1)


def info_table_from_wire(node: Any, count: int) -> InfoTable | None:
    """The table of infos that are sent as columns; None for infos sent as dicts.

    Raises:
        WireError: it is not a table of so many infos.
    """
    if not isinstance(node, dict):
        return None
    _check_fields(node, "infos")
    if node["count"] != count or not isinstance(node["columns"], list):
        raise WireError(f"expected columns of {count} infos")
    columns = {}
    for column in node["columns"]:
        if not isinstance(column, list) or len(column) != 4 or not isinstance(column[0], str):
            raise WireError("expected a key, a type, values and a mask for each column of infos")
        key, name, values, mask = column
        if not isinstance(name, str) or name not in _KINDS:
            raise WireError(f"expected a type out of {', '.join(_KINDS)}, got {_shown(name)}")
        kind = _KINDS[name]
        dtype = np.dtype(_PYTHONS.get(kind, kind))
        present = np.ones(count, np.bool_)
        if mask is not None:
            present = array_from_wire(mask, np.dtype(np.bool_), (count,))
        columns[key] = kind, array_from_wire(values, dtype, (count,)), present
    return InfoTable(columns, count)


def infos_from_wire(node: Any, count: int) -> list[dict[Any, Any]]:
    """The infos of a message.

    Raises:
        WireError: they are not so many dicts, or columns of so many infos.
    """
    if (table := info_table_from_wire(node, count)) is not None:
        return table.dicts()
    if not isinstance(node, list) or len(node) != count:
        raise WireError(f"expected a list of {count} infos")
    infos = [from_wire(info) for info in node]
    for info in infos:
        if not isinstance(info, dict):
            raise WireError(f"expected infos that are dicts, got {_shown(info)}")
    return infos


def _encode_dict(value: Mapping[Any, Any], depth: int) -> Any:
    encoded: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str or key == _TAG:
            items = [[to_wire(key, depth), to_wire(item, depth)] for key, item in value.items()]
            return {_TAG: "dict", "items": items}
        kind = type(item)  # infos are many, and what is in them is this, most often
        if kind is bool or kind is str or (kind is int and -(2**63) <= item < 2**64):
            encoded[key] = item
        else:
            encoded[key] = to_wire(item, depth)
    return encoded


def _encode_items(tag: str) -> Callable[[Iterable[Any], int], Any]:
    return lambda value, depth: {_TAG: tag, "items": [to_wire(item, depth) for item in value]}


def _encode_scalar(value: np.generic, depth: int) -> Any:
    if value.dtype.name not in DTYPES:
        raise WireError(f"a number of dtype {value.dtype} cannot travel")
    data = value.item()
    if isinstance(data, float) and not math.isfinite(data):
        data = _spell(data)
    return {_TAG: "scalar", "dtype": value.dtype.name, "data": data}


def _encode_array(value: NDArray[Any], depth: int) -> Any:
    if value.dtype.name not in DTYPES:
        raise WireError(f"an array of dtype {value.dtype} cannot travel")
    return Tagged(np.asarray(value))


def _encode_graph(value: GraphInstance, depth: int) -> Any:
    parts = {name: to_wire(part, depth) for name, part in value._asdict().items()}
    return {_TAG: "graph", **parts}


_ENCODERS: tuple[tuple[type, Callable[[Any, int], Any]], ...] = (
    (dict, _encode_dict),
    (list, lambda value, depth: [to_wire(item, depth) for item in value]),
    (GraphInstance, _encode_graph),
    (tuple, _encode_items("tuple")),
    (np.ndarray, _encode_array),
    (str, lambda value, depth: str(value)),
    (bytes, lambda value, depth: bytes(value)),
    (np.generic, _encode_scalar),
    (int, lambda value, depth: to_wire(int(value))),
    (float, lambda value, depth: to_wire(float(value))),
    (set, _encode_items("set")),
    (frozenset, _encode_items("frozenset")),
)


def _check_fields(node: Mapping[Any, Any], tag: str) -> None:
    if node.get(_TAG) != tag or node.keys() != _KEYS[tag]:
        raise WireError(f"expected {tag!r} with {', '.join(_FIELDS[tag])} and nothing else")


def _decode_items(node: Any, depth: int) -> list[Any]:
    _check_fields(node, node[_TAG])
    if not isinstance(node["items"], list):
        raise WireError(f"expected a list of items, got {_shown(node['items'])}")
    return [from_wire(item, depth) for item in node["items"]]


def _decode_dict(node: Any, depth: int) -> dict[Any, Any]:
    items = _decode_items(node, depth)
    if not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise WireError("dict: expected pairs of a key and a value")
    try:
        return dict(items)
    except TypeError as error:
        raise WireError(f"dict: {error}") from None


def _decode_hashed(kind: Callable[[Iterable[Any]], Any]) -> Callable[[Any, int], Any]:
    def decode(node: Any, depth: int) -> Any:
        items = _decode_items(node, depth)
        try:
            return kind(items)
        except TypeError as error:
            raise WireError(f"{node[_TAG]}: {error}") from None

    return decode


def _decode_text(node: Any, tag: str) -> str:
    _check_fields(node, tag)
    if not isinstance(node["data"], str):
        raise WireError(f"{tag}: expected a string, got {_shown(node['data'])}")
    return str(node["data"])


def _decode_int(node: Any, depth: int) -> int:
    try:
        return int(_decode_text(node, "int"), 16)  # linear in its length, unlike decimal digits
    except ValueError:
        raise WireError("int: expected hexadecimal digits") from None


def _decode_float(node: Any, depth: int) -> float:
    text = _decode_text(node, "float")
    if text not in _NOT_FINITE:
        raise WireError(f"float: expected one of {', '.join(_NOT_FINITE)}, got {_shown(text)}")
    return _NOT_FINITE[text]


def _decode_bytes(node: Any, depth: int) -> bytes:
    try:
        return base64.b64decode(_decode_text(node, "bytes"), validate=True)
    except (binascii.Error, ValueError):
        raise WireError("bytes: expected base64") from None


def _decode_scalar(node: Any, depth: int) -> Any:
    _check_fields(node, "scalar")
    return _from_nested_list(node["data"], dtype_from_wire(node["dtype"]), ())[()]


def _decode_graph(node: Any, depth: int) -> GraphInstance:
    _check_fields(node, "graph")
    parts = [from_wire(node[name], depth) for name in GraphInstance._fields]
    for part, optional in zip(parts, (False, True, True), strict=True):
        if not isinstance(part, np.ndarray) and not (optional and part is None):
            raise WireError(f"graph: expected arrays, got {_shown(part)}")
    return GraphInstance(*parts)


_DECODERS: dict[str, Callable[[Any, int], Any]] = {
    "array": lambda node, depth: _tagged_array(node),
    "bytes": _decode_bytes,
    "dict": _decode_dict,
    "float": _decode_float,
    "frozenset": _decode_hashed(frozenset),
    "graph": _decode_graph,
    "int": _decode_int,
    "scalar": _decode_scalar,
    "set": _decode_hashed(set),
    "tuple": lambda node, depth: tuple(_decode_items(node, depth)),
}


def _shown(value: Any) -> str:
    """A value for an error, cut short: it may be as long as a message."""
    if isinstance(value, int) and value not in _INTS:
        return "an integer beyond 64 bits"
    if not isinstance(value, str | int | float | list | None):
        return f"a {type(value).__name__}"
    text = ascii(value) if not isinstance(value, list) else f"a list of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
