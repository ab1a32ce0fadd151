"""Messages as msgpack, with arrays as raw bytes."""

from __future__ import annotations

import threading
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import Kind
from xuance_envs.remote.wire.arrays import Tagged, as_raw_bytes
from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.infos import InfoTable, name_of
from xuance_envs.remote.wire.patterns import Patterned

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
    which most are the same every time; all else is left to the library. Of a message of a pattern
    even its walk is spared.
    """

    def __init__(self) -> None:
        self._room: float = 0
        self._size = 0
        self._pieces: list[bytes] = []
        self._places: list[int] = []  # of data among them
        self._known: dict[Any, bytes] = {}
        self._pack = self._new()

    def _new(self) -> Any:
        return msgpack_library().Packer(default=self._part, unicode_errors="surrogatepass").pack

    def patterned(self, message: Patterned, limit: int | None) -> bytes:
        """A message that is of a pattern.

        Raises:
            TooLargeError: it would have more bytes than the limit.
        """
        heads = message.pattern.heads
        if heads is None:
            return self.written(message.message(), limit, message)
        pieces = [b""] * (2 * len(heads) - 1)
        pieces[::2], pieces[1::2] = heads, self._data_of(message)
        packed = b"".join(pieces)
        if limit is not None and len(packed) > limit:
            raise TooLargeError(limit)
        return packed

    def _data_of(self, message: Patterned) -> list[bytes]:
        return [each if type(each) is bytes else self._pack(each) for each in message.data]

    def _learn(self, message: Patterned) -> None:
        """Takes what is not data of a message that was written to be that of its pattern."""
        pieces, places = self._pieces, self._places
        message.pattern.is_one = False
        if [pieces[place] for place in places] == self._data_of(message):
            bounds = [-1, *places, len(pieces)]
            message.pattern.heads = [
                b"".join(pieces[before + 1 : place]) for before, place in pairwise(bounds)
            ]
            message.pattern.is_one = True

    def written(self, message: Any, limit: int | None, learned: Patterned | None = None) -> bytes:
        """A message.

        Args:
            message: the message.
            limit: the most bytes it may have; None for any number.
            learned: the same as one of a pattern that is not known yet, if it is that.

        Raises:
            TooLargeError: it would have more bytes than the limit.
        """
        self._room = float("inf") if limit is None else limit
        self._size = 0
        pieces: list[bytes] = []
        self._pieces, self._places = pieces, []
        try:
            self._add(message)
            packed = b"".join(pieces)
            if learned is not None:
                self._learn(learned)
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
                if type(item) is not np.ndarray:
                    pieces.append(known.get(key) or self._name(key))
                    self._add(item)
                    continue
                head = known.get((key, item.dtype, item.shape))
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
            self._places.append(len(self._pieces))
            self._pieces.append(self._pack(node))
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
        head = self._known.get(column)
        if head is None:
            head = _SHORT_LISTS[4] + self._pack(key) + self._pack(name_of(kind))
            self._keep(column, head)
        return head

    def _keep(self, form: Any, head: bytes) -> None:
        if len(head) < LONG and len(self._known) < FEW:
            self._known[form] = head

    def _name(self, key: Any) -> bytes:
        packed: bytes = self._pack(key)
        if type(key) is str:
            self._keep(key, packed)
        return packed

    def _array(self, array: NDArray[Any]) -> None:
        form = array.dtype, array.shape
        head = self._known.get(form)
        if head is None:
            self._take(array.nbytes)
            whole = as_raw_bytes(array)
            packed: bytes = self._pack(whole)
            self._pieces.append(packed)
            if array.dtype.isnative and array.nbytes:
                self._keep(form, packed[: -len(whole["data"])])
        else:
            self._pieces.append(head)
            self._data(array)

    def _data(self, array: NDArray[Any]) -> None:
        """The data of an array, after its head."""
        self._take(array.nbytes)
        self._places.append(len(self._pieces))
        self._pieces.append(array.tobytes())

    def _item(self, key: Any, array: NDArray[Any]) -> None:
        """An item of a dict; what comes before its data is kept in one piece."""
        name = self._known.get(key) or self._name(key)
        self._pieces.append(name)
        self._array(array)
        head = self._known.get((array.dtype, array.shape))
        if head is not None:
            self._keep((key, array.dtype, array.shape), name + head)

    def _take(self, nbytes: int) -> None:
        self._size += nbytes
        if self._size > self._room:
            raise TooLargeError(int(self._room))

    def _part(self, value: Any) -> Any:
        if isinstance(value, InfoTable):
            return value.as_columns()
        array = value.array if isinstance(value, Tagged) else value
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(value).__name__} in a message")
        self._take(array.nbytes)
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
    if type(message) is Patterned:
        return writer.patterned(message, limit)
    return writer.written(message, limit)
