"""Msgpack encoding, with arrays as raw bytes."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np

from xuance_envs.extras import missing_extra
from xuance_envs.remote.wire.arrays import TaggedArray, as_raw_bytes
from xuance_envs.remote.wire.bounds import BLOCK, TooLargeError, has_more_nodes


@cache
def msgpack_library() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise missing_extra("a msgpack message", "remote", error) from error
    return msgpack


LARGE_MESSAGE = 2**20  # bytes; its writer is replaced, because a packer keeps its buffer


class _Writer:
    """Encoder of messages; one per thread, because a packer is expensive to create."""

    def __init__(self) -> None:
        self._limit = float("inf")
        self._size = 0
        packer = msgpack_library().Packer
        self._packer = packer(default=self._encode_default, unicode_errors="surrogatepass")
        self._pack = self._packer.pack

    def write(self, message: Any, limit: float) -> bytes:
        self._limit, self._size = limit, 0
        pieces: list[bytes] = []
        self._add(message, pieces)
        packed = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(packed) > self._limit:
            raise TooLargeError(int(self._limit))
        return packed

    def _add(self, node: Any, pieces: list[bytes]) -> None:
        """Encode in several calls of the library, because other threads wait during each call."""
        packer = self._packer
        if not has_more_nodes(node, BLOCK):
            pieces.append(self._pack(node))
        elif isinstance(node, dict):
            pieces.append(packer.pack_map_header(len(node)))
            for key, item in node.items():
                pieces.append(self._pack(key))
                self._add(item, pieces)
        else:
            pieces.append(packer.pack_array_header(len(node)))
            for start in range(0, len(node), BLOCK):
                block = node[start : start + BLOCK]
                if has_more_nodes(block, BLOCK):
                    for item in block:
                        self._add(item, pieces)
                else:
                    pieces.append(self._pack(block)[len(packer.pack_array_header(len(block))) :])

    def _encode_default(self, value: Any) -> Any:
        array = value.array if isinstance(value, TaggedArray) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"cannot encode a {type(value).__name__}")
        self._size += array.nbytes
        if self._size > self._limit:
            raise TooLargeError(int(self._limit))
        return as_raw_bytes(array)


_local = threading.local()


def pack(message: Any, limit: int | None = None) -> bytes:
    # Taken while in use, because after an error its buffer holds part of a message.
    writer = _local.__dict__.pop("writer", None) or _Writer()
    packed: bytes = writer.write(message, float("inf") if limit is None else limit)
    if len(packed) <= LARGE_MESSAGE:
        _local.writer = writer
    return packed
