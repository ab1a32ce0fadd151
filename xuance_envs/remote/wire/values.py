"""Values in messages: infos, arguments and results, and batches of a space's values.

A batch has one value per environment and the structure of its space: a dict for Dict, a list for
Tuple, an array with an additional first axis for Box, Discrete, MultiDiscrete and MultiBinary, and
a list of values for other spaces.
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from xuance_envs.engine.data.space_layout import ARRAY_SPACES
from xuance_envs.remote.wire.nodes import (
    ATOMS,
    DTYPES,
    FIELDS,
    INTS,
    MAX_DEPTH,
    NON_FINITE,
    TAG,
    TaggedArray,
    WireError,
    array_from_wire,
    check_fields,
    checked_list,
    finite_or_name,
    shortened,
    tagged_array,
    tagged_scalar,
)

logger = logging.getLogger("xuance_envs")

# Maximum elements of a set, or keys of a dict, if some are neither strings nor bytes. Clients can
# choose numbers with equal hashes, and creating a set of these takes quadratic time.
MAX_COLLIDING = 64


# Conversions from subclasses, whose own methods may differ, such as ``__str__`` of an enum member.
_EXACT: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
}


def to_wire(value: Any, depth: int = 0) -> Any:
    """Encode a value; a subclass is encoded as its base class, an ``OrderedDict`` as a dict."""
    kind = type(value)
    if kind is bool or kind is str or value is None or kind is bytes:
        return value
    if kind is int:
        return value if value in INTS else {TAG: "int", "data": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "data": finite_or_name(value)}
    if depth >= MAX_DEPTH:
        raise WireError(
            f"cannot send values that contain themselves or more than {MAX_DEPTH} nested levels"
        )
    return _encode(value, depth + 1)


def from_wire(node: Any, depth: int = 0, max_colliding: float = math.inf) -> Any:
    """Decode a value; the inverse of :func:`to_wire`."""
    kind = type(node)
    if kind in ATOMS:
        return node
    if kind is not dict and kind is not list:
        raise WireError(f"expected a number, string, bytes, list or dict, got {shortened(node)}")
    if depth >= MAX_DEPTH:
        raise WireError(f"expected values nested at most {MAX_DEPTH} levels deep, got more levels")
    if kind is list:
        return [from_wire(item, depth + 1, max_colliding) for item in node]
    if TAG not in node:
        decoded = {}
        for key, item in node.items():
            if type(key) is not str:
                raise WireError(f"expected strings as keys, got {shortened(key)}")
            is_atom = type(item) in ATOMS
            decoded[key] = item if is_atom else from_wire(item, depth + 1, max_colliding)
        return decoded
    tag = node[TAG]
    if type(tag) is not str or tag not in FIELDS:
        raise WireError(f"expected one of the tags {', '.join(FIELDS)}, got {shortened(tag)}")
    check_fields(node, tag)
    return _decode_tagged(tag, node, depth + 1, max_colliding)


def from_client(node: Any) -> Any:
    """Decode a value of an untrusted client, in linear time."""
    return from_wire(node, max_colliding=MAX_COLLIDING)


def _encode(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return _encode_dict(value, depth)
    if isinstance(value, list):
        return [to_wire(item, depth) for item in value]
    if isinstance(value, spaces.GraphInstance):
        parts = [to_wire(part, depth) for part in value]
        return {TAG: "graph", **dict(zip(FIELDS["graph"], parts, strict=True))}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {TAG: kind.__name__, "items": [to_wire(item, depth) for item in value]}
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise WireError("cannot send a masked array: send its data and its mask")
        if value.dtype.name not in DTYPES:
            raise WireError(f"cannot send an array of dtype {value.dtype}")
        return TaggedArray(np.asarray(value))
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        if (name := value.dtype.name) not in DTYPES:
            raise WireError(f"cannot send a number of dtype {value.dtype}")
        return {TAG: "scalar", "dtype": name, "data": finite_or_name(value.item())}
    for base, exact in _EXACT.items():
        if isinstance(value, base):
            return to_wire(exact(value))
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except Exception as error:  # of the value's class, such as a tensor that needs gradients
            raise WireError(f"cannot send a value of type {name}: {error}") from None
        return to_wire(array, depth)
    raise WireError(f"cannot send a value of type {name}")


def _encode_dict(value: Mapping[Any, Any], depth: int) -> Any:
    encoded: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str or key == TAG:
            items = [[to_wire(key, depth), to_wire(item, depth)] for key, item in value.items()]
            return {TAG: "dict", "items": items}
        kind = type(item)
        is_common = kind is bool or kind is str or (kind is int and -(2**63) <= item < 2**64)
        encoded[key] = item if is_common else to_wire(item, depth)
    return encoded


def _decode_tagged(tag: str, node: Any, depth: int, max_colliding: float) -> Any:
    if tag == "array":
        return tagged_array(node)
    if tag == "scalar":
        return tagged_scalar(node)
    if tag == "graph":
        parts = [from_wire(node[name], depth, max_colliding) for name in FIELDS["graph"]]
        for number, part in enumerate(parts):
            if not isinstance(part, np.ndarray) and (part is not None or not number):
                raise WireError(f"graph: expected arrays, got {shortened(part)}")
        return spaces.GraphInstance(*parts)
    if tag in _PARSERS:
        (parse, expected), text = _PARSERS[tag], node["data"]
        if isinstance(text, str):
            with suppress(LookupError, ValueError):
                return parse(text)
        raise WireError(f"{tag}: expected {expected}, got {shortened(text)}")
    if not isinstance(node["items"], list):
        raise WireError(f"expected a list of items, got {shortened(node['items'])}")
    items = [from_wire(item, depth, max_colliding) for item in node["items"]]
    for item in items if tag == "dict" else ():
        if not isinstance(item, list) or len(item) != 2:
            raise WireError(f"dict: expected [key, value] pairs, got {shortened(item)}")
    if len(items) > max_colliding and tag != "tuple":
        what, keys = ("keys", [key for key, _ in items]) if tag == "dict" else ("items", items)
        if others := {*map(type, keys)} - {str, bytes}:
            raise WireError(
                f"expected only strings or bytes as {what} of a {tag} with more than "
                f"{max_colliding} items, got {len(items)}, some of type {others.pop().__name__}"
            )
    try:
        return _COLLECTIONS[tag](items)
    except TypeError as error:  # unhashable
        raise WireError(f"{tag}: {error}") from None


# Parsers of texts, and the expected texts.
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "bytes": (partial(base64.b64decode, validate=True), "base64"),
    "float": (NON_FINITE.__getitem__, f"one of {', '.join(NON_FINITE)}"),
    "int": (partial(int, base=16), "hexadecimal digits"),  # linear, unlike decimal
}
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    kind.__name__: kind for kind in (dict, frozenset, set, tuple)
}


def batch_to_wire(space: Space[Any], batch: Any) -> Any:
    if isinstance(space, ARRAY_SPACES):
        return np.asarray(batch)
    if isinstance(space, spaces.Dict):
        parts = [batch_to_wire(inner, batch[key]) for key, inner in space.spaces.items()]
        return dict(zip(space.spaces, parts, strict=True)) if _has_string_keys(space) else parts
    if isinstance(space, spaces.Tuple):
        return [batch_to_wire(inner, part) for inner, part in zip(space, batch, strict=True)]
    return [to_wire(value) for value in batch]


def batch_from_wire(
    space: Space[Any], node: Any, count: int, decode: Callable[[Any], Any] = from_wire
) -> Any:
    """Decode a batch of ``count`` values; the inverse of :func:`batch_to_wire`."""
    if isinstance(space, ARRAY_SPACES):
        shape, dtype = space.shape, space.dtype
        assert shape is not None
        assert dtype is not None
        return array_from_wire(node, dtype, (count, *shape))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        parts = zip(inner, _parts(space, node), strict=True)
        values = tuple(batch_from_wire(each, part, count, decode) for each, part in parts)
        if isinstance(space, spaces.Tuple):
            return values
        return dict(zip(space.spaces, values, strict=True))
    return list(map(decode, checked_list(node, count, "value", f" for {type(space).__name__}")))


def _has_string_keys(space: spaces.Dict) -> bool:
    return all(type(key) is str for key in space.spaces)


def _parts(space: spaces.Dict | spaces.Tuple[Any], node: Any) -> list[Any]:
    if isinstance(space, spaces.Dict) and _has_string_keys(space):
        if not isinstance(node, dict) or node.keys() != set(space.spaces):
            got = f"the keys {list(node)[:8]!a:.100}" if isinstance(node, dict) else shortened(node)
            raise WireError(f"expected the keys {list(space.spaces)!a} for Dict, got {got}")
        return [node[key] for key in space.spaces]
    return checked_list(node, len(space.spaces), "item", f" for {type(space).__name__}")


def infos_from_wire(node: Any, count: int) -> list[dict[Any, Any]]:
    infos = list(map(from_wire, checked_list(node, count, "info")))
    for info in infos:
        if not isinstance(info, dict):
            raise WireError(f"expected infos to be dicts, got {shortened(info)}")
    return infos


def drop_unsendable(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the items that can be sent; log the key of each other item once."""
    sendable = {}
    for key, value in info.items():
        try:
            to_wire({key: value})
            sendable[key] = value
        except WireError as error:
            _warn_unsendable(f"{key!r}", f"{error}")
    return sendable


@lru_cache(256)
def _warn_unsendable(key: str, reason: str) -> None:
    logger.warning("the info key %s is not sent to clients: %s", key, reason)
