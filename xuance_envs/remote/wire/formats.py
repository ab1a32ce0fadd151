"""Formats of messages: JSON for compatibility, msgpack for speed."""

from __future__ import annotations

import json
import threading
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.extras import missing_extra
from xuance_envs.remote.wire.arrays import TaggedArray, as_raw_bytes
from xuance_envs.remote.wire.bounds import check_json_nodes, check_nodes
from xuance_envs.remote.wire.json_writer import JsonWriter, encode_json
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.pieces import PieceWriter

LARGE_MESSAGE = 2**20  # bytes; its writer is replaced, because a packer keeps its buffer


class WireFormat(Enum):
    JSON = "application/json"
    MSGPACK = "application/msgpack"

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type

    __hash__ = object.__hash__  # faster than Enum's, which hashes the name


_JSON = WireFormat.JSON  # attribute access on the class is slow


def dumps(message: Any, wire_format: WireFormat, limit: int | None = None) -> bytes:
    """Encode a message, which may contain NumPy arrays and tagged arrays."""
    if wire_format is _JSON:
        if limit is None:
            return encode_json(message)
        return JsonWriter().write(message, limit)
    # Taken while in use, because after an error its buffer holds part of a message.
    writer = _local.__dict__.pop("writer", None) or _MsgpackWriter()
    packed: bytes = writer.write(message, float("inf") if limit is None else limit)
    if len(packed) <= LARGE_MESSAGE:
        _local.writer = writer
    return packed


def loads(data: bytes, wire_format: WireFormat, max_nodes: int | None = None) -> Any:
    if max_nodes is not None and len(data) > max_nodes:  # a node has at least one byte
        (check_json_nodes if wire_format is WireFormat.JSON else check_nodes)(data, max_nodes)
    try:
        if wire_format is _JSON:
            return json.loads(data, parse_constant=_reject_constant)
        return _msgpack().unpackb(
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


@cache
def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise missing_extra("a msgpack message", "remote", error) from error
    return msgpack


class _MsgpackWriter(PieceWriter):
    """Encoder of messages; one per thread, because a packer is expensive to create."""

    def __init__(self) -> None:
        packer = _msgpack().Packer
        self._packer = packer(default=self._encode_default, unicode_errors="surrogatepass")
        self.encode = self._packer.pack

    @override
    def brackets(self, node: Any) -> tuple[bytes, bytes]:
        is_dict, head = isinstance(node, dict), self._packer.pack_array_header
        return (self._packer.pack_map_header if is_dict else head)(len(node)), b""

    @override
    def encode_key(self, key: str) -> bytes:
        return self.encode(key)

    @override
    def encode_items(self, items: Any) -> bytes:
        opening, _ = self.brackets(items)
        return self.encode(items)[len(opening) :]

    def _encode_default(self, value: Any) -> Any:
        array = value.array if isinstance(value, TaggedArray) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"cannot encode a value of type {type(value).__name__}")
        self.count(array.nbytes)
        return as_raw_bytes(array)


_local = threading.local()
