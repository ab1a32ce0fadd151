"""The two forms of a message: JSON for anybody, msgpack for speed."""

from __future__ import annotations

import json
import threading
from enum import Enum
from typing import Any

import numpy as np

from xuance_envs.remote.wire.arrays import Tagged, as_raw_bytes
from xuance_envs.remote.wire.bounds import TooLargeError, check_json_nodes, check_nodes
from xuance_envs.remote.wire.infos import InfoTable
from xuance_envs.remote.wire.json_writer import JsonWriter, encode_json
from xuance_envs.remote.wire.nodes import WireError

__all__ = ["Form", "dumps", "loads"]


LARGE = 2**20
"""Bytes of a message for which memory is not kept."""


class Form(Enum):
    """How a message is written; the value is its content type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


def dumps(message: Any, form: Form, limit: int | None = None) -> bytes:
    """Writes a message whose arrays may be NumPy's or tagged.

    Args:
        message: the message.
        form: how to write it.
        limit: the most bytes it may have; None for any number. With one, no call into C is long
            enough to keep other threads waiting.

    Raises:
        TooLargeError: it would have more.
    """
    if form is Form.JSON:
        if limit is None:
            return encode_json(message).encode()
        return JsonWriter(limit).written(message)
    packer = _packer()
    packer.room = limit
    packed: bytes = packer.pack(message)
    if limit is not None and len(packed) > limit:
        raise TooLargeError(limit)
    return packed


def loads(data: bytes, form: Form, max_nodes: int | None = None) -> Any:
    """Reads a message.

    Args:
        data: the message.
        form: how it is written.
        max_nodes: the most values, lists and dicts it may be; None for any number.

    Raises:
        WireError: it is not JSON, or not msgpack, or more than may be.
    """
    if max_nodes is not None and len(data) > max_nodes:  # none is shorter than a byte
        (check_json_nodes if form is Form.JSON else check_nodes)(data, max_nodes)
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


class _Packer:
    """Writes msgpack; one per thread, because making one takes as long as writing a message."""

    def __init__(self) -> None:
        self.room: int | None = None
        self._pack = self._new()

    def _new(self) -> Any:
        return (
            _msgpack()
            .Packer(default=self._part, unicode_errors="surrogatepass", use_bin_type=True)
            .pack
        )

    def pack(self, message: Any) -> bytes:
        self._size = 0
        try:
            packed = bytes(self._pack(message))
        except BaseException:
            self._pack = self._new()  # it may keep what it had written
            raise
        if len(packed) > LARGE:
            self._pack = self._new()  # it keeps its memory
        return packed

    def _part(self, value: Any) -> Any:
        if isinstance(value, InfoTable):
            return value.as_columns()
        array = value.array if isinstance(value, Tagged) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(value).__name__} in a message")
        if self.room is not None:
            self._size += array.nbytes
            if self._size > self.room:
                raise TooLargeError(self.room)
        return as_raw_bytes(array)


_of_thread = threading.local()


def _packer() -> _Packer:
    try:
        packer: _Packer = _of_thread.packer
    except AttributeError:
        packer = _of_thread.packer = _Packer()
    return packer


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
