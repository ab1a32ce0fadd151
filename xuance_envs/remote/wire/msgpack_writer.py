"""Messages as msgpack, with arrays as raw bytes."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.remote.wire.arrays import Tagged, as_raw_bytes
from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.infos import InfoTable, name_of

__all__ = ["msgpack_library", "pack"]

FEW = 4096
"""Forms of arrays whose heads are kept."""

SHORT = 4
"""Items of a list up to which it is put together here, such as the parts of a Tuple."""

LONG = 256
"""Bytes of a head or name from which on it is not kept."""

LARGE = 2**20
"""Bytes of a message for which memory is not kept."""


@cache
def msgpack_library() -> Any:
    """The package of that name.

    Raises:
        ImportError: it is not installed.
    """
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
    which most are the same every time; all else is left to the library.
    """

    def __init__(self) -> None:
        self._room: float = 0
        self._size = 0
        self._pieces: list[bytes] = []
        self._known: dict[Any, bytes] = {}
        self._pack = self._new()

    def _new(self) -> Any:
        return msgpack_library().Packer(default=self._part, unicode_errors="surrogatepass").pack

    def written(self, message: Any, limit: int | None) -> bytes:
        """A message.

        Raises:
            TooLargeError: it would have more bytes than the limit.
        """
        self._room = float("inf") if limit is None else limit
        self._size = 0
        pieces: list[bytes] = []
        self._pieces = pieces
        try:
            self._add(message)
            packed = b"".join(pieces)
        except BaseException:
            self._pack = self._new()  # it may keep what it had written
            raise
        finally:
            self._pieces = []
        if len(packed) > self._room:
            raise TooLargeError(int(self._room))
        if len(packed) > LARGE:
            self._pack = self._new()  # it keeps its memory
        return packed

    def _add(self, node: Any) -> None:
        kind = type(node)
        if kind is dict and len(node) < 16:
            pieces, known = self._pieces, self._known
            pieces.append(_SHORT_DICTS[len(node)])
            for key, item in node.items():
                pieces.append(known.get(key) or self._name(key))
                if type(item) is np.ndarray:
                    self._array(item)
                else:
                    self._add(item)
        elif kind is np.ndarray:
            self._array(node)
        elif node is None:
            self._pieces.append(_NONE)
        elif kind is list and len(node) <= SHORT:
            self._pieces.append(_SHORT_LISTS[len(node)])
            for item in node:
                self._add(item)
        elif kind is str:
            self._pieces.append(self._known.get(node) or self._name(node))
        elif kind is InfoTable:
            self._table(node)
        else:
            self._pieces.append(self._pack(node))

    def _table(self, table: InfoTable) -> None:
        """What :meth:`InfoTable.as_columns` is, whose heads are mostly those of the last one."""
        pieces, known, columns = self._pieces, self._known, table.columns
        form = table.count, len(columns)
        head = known.get(form)
        if head is None:
            # With no columns the list of them ends it; its length is written as that of others.
            empty: bytes = self._pack(InfoTable({}, table.count).as_columns())
            head = empty[:-1] + self._pack([None] * len(columns))[: -len(columns) or None]
            self._keep(form, head)
        pieces.append(head)
        for key, (kind, values, mask) in columns.items():
            column = key, kind
            head = known.get(column)
            if head is None:
                head = _SHORT_LISTS[4] + self._pack(key) + self._pack(name_of(kind))
                self._keep(column, head)
            pieces.append(head)
            self._array(values)
            if mask is None:
                pieces.append(_NONE)
            else:
                self._array(mask)

    def _keep(self, form: Any, head: bytes) -> None:
        if len(head) < LONG and len(self._known) < FEW:
            self._known[form] = head

    def _name(self, key: Any) -> bytes:
        packed: bytes = self._pack(key)
        if type(key) is str:
            self._keep(key, packed)
        return packed

    def _array(self, array: NDArray[Any]) -> None:
        self._take(array)
        form = array.dtype, array.shape
        head = self._known.get(form)
        if head is None:
            whole = as_raw_bytes(array)
            packed: bytes = self._pack(whole)
            self._pieces.append(packed)
            if array.dtype.isnative and array.nbytes:
                self._keep(form, packed[: -len(whole["data"])])
        else:
            self._pieces.append(head)
            self._pieces.append(array.tobytes())

    def _take(self, array: NDArray[Any]) -> None:
        self._size += array.nbytes
        if self._size > self._room:
            raise TooLargeError(int(self._room))

    def _part(self, value: Any) -> Any:
        if isinstance(value, InfoTable):
            return value.as_columns()
        array = value.array if isinstance(value, Tagged) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(value).__name__} in a message")
        self._take(array)
        return as_raw_bytes(array)


_of_thread = threading.local()


def pack(message: Any, limit: int | None = None) -> bytes:
    """Writes a message whose arrays may be NumPy's or tagged.

    Raises:
        TooLargeError: it would have more bytes than the limit.
    """
    try:
        writer: _Writer = _of_thread.writer
    except AttributeError:
        writer = _of_thread.writer = _Writer()
    return writer.written(message, limit)
