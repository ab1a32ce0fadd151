"""Formats of messages: JSON for compatibility, msgpack for speed."""

from __future__ import annotations

import base64
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.extras import missing_extra
from xuance_envs.remote.wire.bounds import TooLargeError, check_json_nodes, check_nodes
from xuance_envs.remote.wire.nodes import (
    TAG,
    LazyList,
    TaggedArray,
    WireError,
    as_nested_list,
    as_raw_bytes,
    head_of,
)

try:
    import msgpack
except ImportError as error:
    raise missing_extra("the HTTP client", "remote", error) from error
try:
    import orjson
except ImportError:  # there is no wheel for this system
    orjson = None  # type: ignore[assignment]

LARGE_MESSAGE = 2**20  # bytes; a writer of a larger message is dropped, because it keeps its buffer
BLOCK = 8192  # maximum values to encode in one call, because other threads wait during the call

_CONTAINERS = frozenset({dict, list, LazyList})


class WireFormat(Enum):
    JSON = "application/json"
    MSGPACK = "application/msgpack"

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type

    __hash__ = object.__hash__  # faster than Enum's, which hashes the name


def dumps(message: Any, wire_format: WireFormat, limit: float = inf) -> bytes:
    """Encode a message, which may contain NumPy arrays and tagged arrays."""
    if wire_format is WireFormat.JSON:
        return JsonWriter().write(message, limit)
    # Removed while in use, because after an error its buffer holds part of a message.
    writer = _local.__dict__.pop("writer", None) or _MsgpackWriter()
    packed: bytes = writer.write(message, limit)
    if len(packed) <= LARGE_MESSAGE:
        _local.writer = writer
    return packed


def loads(data: bytes, wire_format: WireFormat, max_nodes: int | None = None) -> Any:
    if max_nodes is not None and len(data) > max_nodes:  # a node has at least one byte
        (check_json_nodes if wire_format is WireFormat.JSON else check_nodes)(data, max_nodes)
    try:
        if wire_format is WireFormat.JSON:
            return json.loads(data, parse_constant=_reject_constant)
        return msgpack.unpackb(
            data, raw=False, unicode_errors="surrogatepass", ext_hook=_reject_extension
        )
    except RecursionError:
        raise WireError(f"the {wire_format.name} message is nested too deep") from None
    except WireError:
        raise
    except Exception as error:  # msgpack's exceptions have no common base
        raise WireError(f"the message is not valid {wire_format.name}: {error}") from None


def _reject_constant(name: str) -> Any:
    raise WireError(f'{name} is not valid JSON: write it as the string "{name}"')


def _reject_extension(code: int, data: bytes) -> Any:
    raise WireError(f"msgpack extension types are not supported, got type {code}")


def _encode_default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return as_nested_list(value)
    if isinstance(value, TaggedArray):
        return {**head_of(value.array), "data": as_nested_list(value.array)}
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


class PieceWriter(ABC):
    """Encoder of messages in pieces, so that no call takes long; it limits the size."""

    comma = colon = b""
    leaf_costs: Mapping[type, Callable[[Any], int]] = {}  # functions that count a leaf's values
    costly = _CONTAINERS
    encode: Callable[[Any], bytes]

    def write(self, message: Any, limit: float) -> bytes:
        self._limit, self._added, self._size = limit, 0, 0
        if self._cost(message) <= BLOCK:
            encoded = self.encode(message)
        else:
            self._pieces: list[bytes] = []
            self.write_large(message)
            encoded, self._pieces = b"".join(self._pieces), []
        if len(encoded) > limit:
            raise TooLargeError(int(limit))
        return encoded

    def write_large(self, node: Any) -> None:
        """Write the items of a dict, list or array in parts that are small."""
        opening, closing = self.brackets(node)
        self.add(opening)
        comma, is_dict, is_array = b"", isinstance(node, dict), isinstance(node, np.ndarray)
        items = iter([node] if is_array else node.items() if is_dict else node)
        size = 1 if isinstance(node, LazyList) else BLOCK
        while block := list(islice(items, size)):
            waiting = block if is_array else [block]
            while waiting:
                part = waiting.pop()
                container = dict(part) if is_dict else part
                if self._cost(container) <= BLOCK:
                    self.add(comma + self.encode_items(container))
                elif half := len(part) // 2:
                    waiting += [part[half:], part[:half]]
                    continue
                else:
                    self.add(comma + (self.encode(part[0][0]) + self.colon if is_dict else b""))
                    self.write_large(part[0][1] if is_dict else part[0])
                comma = self.comma
        self.add(closing)

    def encode_items(self, node: Any) -> bytes:
        """Encode the items of a small dict or list, without its brackets."""
        opening, closing = self.brackets(node)
        encoded = self.encode(node)
        return encoded[len(opening) : len(encoded) - len(closing)]

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._added += len(piece)
        self._size = self._added
        self.count(0)

    def count(self, size: int) -> None:
        """Count bytes of the next piece; raise if the message would be too large."""
        self._size += size
        if self._size > self._limit:
            raise TooLargeError(int(self._limit))

    def _cost(self, node: Any) -> int:
        """Return the number of values to encode in a node; counting stops above BLOCK."""
        found, cost, leaf_costs = [node], 0, self.leaf_costs
        for each in found:
            if (kind := type(each)) in _CONTAINERS:
                cost += len(each)
                if kind is LazyList or cost > BLOCK:
                    return BLOCK + 1
                items = each.values() if kind is dict else each
                if not self.costly.isdisjoint(map(type, items)):
                    found += items
            elif kind in leaf_costs:
                cost += leaf_costs[kind](each)
        return cost

    @abstractmethod
    def brackets(self, node: Any) -> tuple[bytes, bytes]:
        """Return the bytes before and after the items of a dict or list."""


class JsonWriter(PieceWriter):
    comma, colon = b",", b":"
    leaf_costs: Mapping[type, Callable[[Any], int]] = {
        np.ndarray: lambda array: array.size,
        TaggedArray: lambda tagged: tagged.array.size,
        **dict.fromkeys((str, bytes), lambda text: len(text) >> 4),
    }
    costly = _CONTAINERS | leaf_costs.keys()
    encode = staticmethod(encode_json)

    @override
    def brackets(self, node: Any) -> tuple[bytes, bytes]:
        return (b"{", b"}") if isinstance(node, dict) else (b"[", b"]")

    @override
    def write_large(self, node: Any) -> None:
        if isinstance(node, TaggedArray):
            self.add(encode_json({**head_of(node.array), "data": 0})[:-2])
            super().write_large(node.array)
            self.add(b"}")
        elif isinstance(node, str | bytes):
            self.count(len(node))
            self.add(encode_json(node))
        else:
            super().write_large(node)


class _MsgpackWriter(PieceWriter):
    """Encoder of messages; one per thread, because a packer is expensive to create."""

    def __init__(self) -> None:
        encode_default = self._encode_default
        self._packer = msgpack.Packer(default=encode_default, unicode_errors="surrogatepass")
        self.encode = self._packer.pack

    @override
    def brackets(self, node: Any) -> tuple[bytes, bytes]:
        is_dict, head = isinstance(node, dict), self._packer.pack_array_header
        return (self._packer.pack_map_header if is_dict else head)(len(node)), b""

    def _encode_default(self, value: Any) -> Any:
        array = value.array if isinstance(value, TaggedArray) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"cannot encode a value of type {type(value).__name__}")
        self.count(array.nbytes)
        return as_raw_bytes(array)


_local = threading.local()
