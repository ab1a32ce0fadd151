"""Messages as msgpack, with arrays as raw bytes."""

from __future__ import annotations

import threading
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import Kind
from xuance_envs.remote.wire.arrays import TaggedArray, as_raw_bytes
from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.infos import InfoTable, name_of
from xuance_envs.remote.wire.templates import TemplatedMessage

__all__ = ["msgpack_library", "pack"]

MAX_CACHED_HEADS = 4096
"""Forms of arrays whose heads are kept."""

SHORT_LIST = 4
"""Items of a list up to which it is put together here, such as the parts of a Tuple."""

MAX_CACHED_HEAD = 256
"""Bytes of a head or name from which on it is not kept."""

LARGE_MESSAGE = 2**20
"""Bytes of a message for which memory is not kept."""


@cache
def msgpack_library() -> Any:
    """The package of that name."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            'messages in msgpack need the package of that name: pip install "xuance_envs[remote]"'
        ) from error
    return msgpack


_SHORT_DICTS = [bytes((0x80 + length,)) for length in range(16)]
_SHORT_LISTS = [bytes((0x90 + length,)) for length in range(16)]
_NONE = b"\xc0"


class _Writer:
    """Writes messages; one per thread, because making one takes as long as writing a message.

    What a message consists of at its top, dicts and arrays, is put together here, from pieces of
    which most are the same every time; all else is left to the library. Of a message of a pattern
    even its walk is spared.
    """

    def __init__(self) -> None:
        self._limit: float = 0
        self._size = 0
        self._pieces: list[bytes] = []
        self._data_positions: list[int] = []  # of data among them
        self._head_cache: dict[Any, bytes] = {}
        self._pack = self._new()

    def _new(self) -> Any:
        return msgpack_library().Packer(default=self._part, unicode_errors="surrogatepass").pack

    def write_templated(self, message: TemplatedMessage, limit: int | None) -> bytes:
        """A message that is of a pattern."""
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
        """Takes what is not data of a message that was written to be that of its pattern."""
        pieces, positions = self._pieces, self._data_positions
        message.template.usable = False
        if [pieces[place] for place in positions] == self._data_of(message):
            bounds = [-1, *positions, len(pieces)]
            message.template.fixed_parts = [
                b"".join(pieces[before + 1 : place]) for before, place in pairwise(bounds)
            ]
            message.template.usable = True

    def write(
        self, message: Any, limit: int | None, template_of: TemplatedMessage | None = None
    ) -> bytes:
        """A message."""
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
            self._pack = self._new()  # it may keep what it had written
            raise
        finally:
            self._pieces = []
        if len(packed) > self._limit:
            raise TooLargeError(int(self._limit))
        if len(packed) > LARGE_MESSAGE:
            self._pack = self._new()  # it keeps its memory
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
        else:
            self._pieces.append(self._pack(node))

    def _table(self, table: InfoTable) -> None:
        """What :meth:`InfoTable.as_columns` is, whose heads are mostly those of the last one."""
        pieces, columns = self._pieces, table.columns
        pieces.append(self._head_of_table(table.count, len(columns)))
        for key, (kind, values, mask) in columns.items():
            pieces.append(self._head_of_column(key, kind))
            self._array(values)
            if mask is None:
                pieces.append(_NONE)
            else:
                self._array(mask)

    def _head_of_table(self, count: int, columns: int) -> bytes:
        # With no columns the list of them ends it; its length is written as that of others.
        empty: bytes = self._pack(InfoTable({}, count).as_columns())
        length: bytes = self._pack([None] * columns)
        return empty[:-1] + length[: -columns or None]

    def _head_of_column(self, key: str, kind: Kind) -> bytes:
        column = key, kind
        head = self._head_cache.get(column)
        if head is None:
            head = _SHORT_LISTS[4] + self._pack(key) + self._pack(name_of(kind))
            self._cache_head(column, head)
        return head

    def _cache_head(self, form: Any, head: bytes) -> None:
        if len(head) < MAX_CACHED_HEAD and len(self._head_cache) < MAX_CACHED_HEADS:
            self._head_cache[form] = head

    def _pack_key(self, key: Any) -> bytes:
        packed: bytes = self._pack(key)
        if type(key) is str:
            self._cache_head(key, packed)
        return packed

    def _array(self, array: NDArray[Any]) -> None:
        form = array.dtype, array.shape
        head = self._head_cache.get(form)
        if head is None:
            self._reserve(array.nbytes)
            whole = as_raw_bytes(array)
            packed: bytes = self._pack(whole)
            self._pieces.append(packed)
            if array.dtype.isnative and array.nbytes:
                self._cache_head(form, packed[: -len(whole["data"])])
        else:
            self._pieces.append(head)
            self._data(array)

    def _data(self, array: NDArray[Any]) -> None:
        """The data of an array, after its head."""
        self._reserve(array.nbytes)
        self._data_positions.append(len(self._pieces))
        self._pieces.append(array.tobytes())

    def _item(self, key: Any, array: NDArray[Any]) -> None:
        """An item of a dict; what comes before its data is kept in one piece."""
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

    def _part(self, value: Any) -> Any:
        if isinstance(value, InfoTable):
            return value.as_columns()
        array = value.array if isinstance(value, TaggedArray) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(value).__name__} in a message")
        self._reserve(array.nbytes)
        return as_raw_bytes(array)


_thread_local = threading.local()


def pack(message: Any, limit: int | None = None) -> bytes:
    """Writes a message whose arrays may be NumPy's or tagged."""
    try:
        writer: _Writer = _thread_local.writer
    except AttributeError:
        writer = _thread_local.writer = _Writer()
    if type(message) is TemplatedMessage:
        return writer.write_templated(message, limit)
    return writer.write(message, limit)
