"""Msgpack encoding, with arrays as raw bytes."""

from __future__ import annotations

import threading
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import Kind
from xuance_envs.extras import missing_extra
from xuance_envs.remote.wire.arrays import TaggedArray, as_raw_bytes
from xuance_envs.remote.wire.bounds import BLOCK, TooLargeError, has_more_nodes
from xuance_envs.remote.wire.infos import InfoTable, kind_name
from xuance_envs.remote.wire.templates import TemplatedMessage

MAX_CACHED_HEADS = 4096

SHORT_LIST = 4
"""Maximum items of a list that this module encodes itself, such as the parts of a Tuple."""

MAX_CACHED_HEAD = 256
"""Bytes at which a head or key is too long to be cached."""

LARGE_MESSAGE = 2**20
"""Bytes of a message above which the packer is replaced, because it keeps its buffer."""


@cache
def msgpack_library() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise missing_extra("a msgpack message", "remote", error) from error
    return msgpack


_SHORT_DICTS = [bytes((0x80 + length,)) for length in range(16)]
_SHORT_LISTS = [bytes((0x90 + length,)) for length in range(16)]
_NONE = b"\xc0"


class _Writer:
    """Message encoder; one per thread, because a packer is as expensive to create as to use.

    It writes the top-level dicts and arrays of a message itself, from cached heads and raw data.
    The msgpack library encodes the rest. A message with a template is not traversed.
    """

    def __init__(self) -> None:
        self._limit: float = 0
        self._size = 0
        self._pieces: list[bytes] = []
        self._data_positions: list[int] = []  # indices of data in _pieces
        self._head_cache: dict[Any, bytes] = {}
        self._renew_packer()

    def _renew_packer(self) -> None:
        new = msgpack_library().Packer
        self._packer = new(default=self._encode_default, unicode_errors="surrogatepass")
        self._pack = self._packer.pack

    def write_templated(self, message: TemplatedMessage, limit: int | None) -> bytes:
        """Encode a message from its template's fixed parts; the first message sets them."""
        fixed_parts = message.template.fixed_parts
        if fixed_parts is None:
            return self.write(message.message(), limit, message)
        pieces = [b""] * (2 * len(fixed_parts) - 1)
        pieces[::2], pieces[1::2] = fixed_parts, self._data_of(message)
        packed = b"".join(pieces)
        if limit is not None and len(packed) > limit:
            raise TooLargeError(limit)
        return packed

    def _data_of(self, message: TemplatedMessage) -> list[bytes]:
        return [each if type(each) is bytes else self._pack(each) for each in message.data]

    def _fill_template(self, message: TemplatedMessage) -> None:
        """Store the fixed parts of the last encoded message in its template."""
        pieces, positions = self._pieces, self._data_positions
        message.template.usable = False
        if [pieces[position] for position in positions] == self._data_of(message):
            bounds = [-1, *positions, len(pieces)]
            message.template.fixed_parts = [
                b"".join(pieces[before + 1 : position]) for before, position in pairwise(bounds)
            ]
            message.template.usable = True

    def write(
        self, message: Any, limit: int | None, template_of: TemplatedMessage | None = None
    ) -> bytes:
        self._limit = float("inf") if limit is None else limit
        self._size = 0
        pieces: list[bytes] = []
        self._pieces, self._data_positions = pieces, []
        try:
            self._add(message)
            packed = b"".join(pieces)
            if template_of is not None:
                self._fill_template(template_of)
        except BaseException:
            self._renew_packer()  # its buffer may contain a partial message
            raise
        finally:
            self._pieces = []
        if len(packed) > self._limit:
            raise TooLargeError(int(self._limit))
        if len(packed) > LARGE_MESSAGE:
            self._renew_packer()  # releases its buffer
        return packed

    def _add(self, node: Any) -> None:
        kind = type(node)
        if kind is dict and len(node) < 16:
            pieces, head_cache = self._pieces, self._head_cache
            pieces.append(_SHORT_DICTS[len(node)])
            for key, item in node.items():
                if type(item) is not np.ndarray:
                    pieces.append(head_cache.get(key) or self._pack_key(key))
                    self._add(item)
                    continue
                head = head_cache.get((key, item.dtype, item.shape))
                if head is None:
                    self._item(key, item)
                    continue
                pieces.append(head)
                self._data(item)
        elif kind is np.ndarray:
            self._array(node)
        elif node is None:
            self._pieces.append(_NONE)
        elif kind is list and node and type(node[0]) is int:
            self._data_positions.append(len(self._pieces))
            self._pieces.append(self._pack(node))
        elif kind is list and len(node) <= SHORT_LIST:
            self._pieces.append(_SHORT_LISTS[len(node)])
            for item in node:
                self._add(item)
        elif kind is str:
            self._pieces.append(self._head_cache.get(node) or self._pack_key(node))
        elif kind is InfoTable:
            self._table(node)
        elif (kind is list or kind is dict) and has_more_nodes(node, BLOCK):
            self._large(node)
        else:
            self._pieces.append(self._pack(node))

    def _large(self, node: list[Any] | dict[str, Any]) -> None:
        """Encode in several calls of the library, because other threads wait during each call."""
        pieces, packer = self._pieces, self._packer
        if isinstance(node, dict):
            pieces.append(packer.pack_map_header(len(node)))
            for key, item in node.items():
                pieces.append(self._pack(key))
                self._add(item)
            return
        pieces.append(packer.pack_array_header(len(node)))
        for start in range(0, len(node), BLOCK):
            block = node[start : start + BLOCK]
            if has_more_nodes(block, BLOCK):
                for item in block:
                    self._add(item)
            else:
                pieces.append(self._pack(block)[len(packer.pack_array_header(len(block))) :])

    def _table(self, table: InfoTable) -> None:
        """Encode the message of :meth:`InfoTable.as_columns`, with cached heads."""
        pieces, columns = self._pieces, table.columns
        pieces.append(self._table_head(table.count, len(columns)))
        for key, (kind, values, mask) in columns.items():
            pieces.append(self._column_head(key, kind))
            self._array(values)
            if mask is None:
                pieces.append(_NONE)
            else:
                self._array(mask)

    def _table_head(self, count: int, columns: int) -> bytes:
        # The message of a table without columns ends with an empty list, which has one byte.
        empty: bytes = self._pack(InfoTable({}, count).as_columns())
        length: bytes = self._pack([None] * columns)
        return empty[:-1] + length[: -columns or None]

    def _column_head(self, key: str, kind: Kind) -> bytes:
        column = key, kind
        head = self._head_cache.get(column)
        if head is None:
            head = _SHORT_LISTS[4] + self._pack(key) + self._pack(kind_name(kind))
            self._cache_head(column, head)
        return head

    def _cache_head(self, key: Any, head: bytes) -> None:
        if len(head) < MAX_CACHED_HEAD and len(self._head_cache) < MAX_CACHED_HEADS:
            self._head_cache[key] = head

    def _pack_key(self, key: Any) -> bytes:
        packed: bytes = self._pack(key)
        if type(key) is str:
            self._cache_head(key, packed)
        return packed

    def _array(self, array: NDArray[Any]) -> None:
        key = array.dtype, array.shape
        head = self._head_cache.get(key)
        if head is None:
            self._reserve(array.nbytes)
            node = as_raw_bytes(array)
            packed: bytes = self._pack(node)
            self._pieces.append(packed)
            if array.dtype.isnative and array.nbytes:
                self._cache_head(key, packed[: -len(node["data"])])
        else:
            self._pieces.append(head)
            self._data(array)

    def _data(self, array: NDArray[Any]) -> None:
        self._reserve(array.nbytes)
        self._data_positions.append(len(self._pieces))
        self._pieces.append(array.tobytes())

    def _item(self, key: Any, array: NDArray[Any]) -> None:
        """Add an item of a dict and cache everything before its data as one head."""
        name = self._head_cache.get(key) or self._pack_key(key)
        self._pieces.append(name)
        self._array(array)
        head = self._head_cache.get((array.dtype, array.shape))
        if head is not None:
            self._cache_head((key, array.dtype, array.shape), name + head)

    def _reserve(self, nbytes: int) -> None:
        self._size += nbytes
        if self._size > self._limit:
            raise TooLargeError(int(self._limit))

    def _encode_default(self, value: Any) -> Any:
        if isinstance(value, InfoTable):
            return value.as_columns()
        array = value.array if isinstance(value, TaggedArray) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"cannot encode a {type(value).__name__}")
        self._reserve(array.nbytes)
        return as_raw_bytes(array)


_thread_local = threading.local()


def pack(message: Any, limit: int | None = None) -> bytes:
    try:
        writer: _Writer = _thread_local.writer
    except AttributeError:
        writer = _thread_local.writer = _Writer()
    if type(message) is TemplatedMessage:
        return writer.write_templated(message, limit)
    return writer.write(message, limit)
