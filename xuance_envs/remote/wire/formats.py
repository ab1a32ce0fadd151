"""Formats of messages: JSON for compatibility, msgpack for speed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from xuance_envs.extras import missing_extra
from xuance_envs.remote.wire.arrays import TaggedArray, as_raw_bytes
from xuance_envs.remote.wire.bounds import (
    BLOCK,
    TooLargeError,
    check_json_nodes,
    check_nodes,
    has_more_nodes,
)
from xuance_envs.remote.wire.json_writer import JsonWriter, encode_json
from xuance_envs.remote.wire.nodes import LazyList, WireError

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
        return JsonWriter(limit).write(message)
    return _pack(message, limit)


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


class _MsgpackWriter:
    """Encoder of messages; one per thread, because a packer is expensive to create."""

    def __init__(self) -> None:
        self._limit = float("inf")
        self._size = 0
        packer = _msgpack().Packer
        self._packer = packer(default=self._encode_default, unicode_errors="surrogatepass")
        self._pack = self._packer.pack

    def write(self, message: Any, limit: float) -> bytes:
        self._limit, self._size = limit, 0
        packed: bytes
        if has_more_nodes(message, BLOCK):
            packed = b"".join(self._pieces(message))
        else:
            packed = self._pack(message)
        if len(packed) > limit:
            raise TooLargeError(int(limit))
        return packed

    def _pieces(self, node: Any) -> Iterator[bytes]:
        """Encode in several calls of the library, because other threads wait during each call."""
        if not has_more_nodes(node, BLOCK):
            yield self._pack(node)
            return
        is_dict = isinstance(node, dict)
        head = self._packer.pack_map_header if is_dict else self._packer.pack_array_header
        yield head(len(node))
        if isinstance(node, LazyList):
            for item in node:
                before = self._size
                pieces = list(self._pieces(item))
                self._size = before  # the pieces contain the arrays that were counted
                self._count(sum(map(len, pieces)))
                yield from pieces
            return
        items = iter(node.items() if is_dict else node)
        while block := list(islice(items, BLOCK)):
            values = dict(block) if is_dict else block
            if not has_more_nodes(values, BLOCK):
                yield self._pack(values)[len(head(len(block))) :]
                continue
            for item in block:
                if is_dict:
                    key, item = item
                    yield self._pack(key)
                yield from self._pieces(item)

    def _encode_default(self, value: Any) -> Any:
        array = value.array if isinstance(value, TaggedArray) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"cannot encode a {type(value).__name__}")
        self._count(array.nbytes)
        return as_raw_bytes(array)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise TooLargeError(int(self._limit))


_local = threading.local()


def _pack(message: Any, limit: int | None) -> bytes:
    # Taken while in use, because after an error its buffer holds part of a message.
    writer = _local.__dict__.pop("writer", None) or _MsgpackWriter()
    packed: bytes = writer.write(message, float("inf") if limit is None else limit)
    if len(packed) <= LARGE_MESSAGE:
        _local.writer = writer
    return packed
