"""What may be a column of infos, and where columns lie: one row per key, one cell per environment.

Of an info dict, numbers and arrays under string keys go into columns, together with their exact
kind; a number is to a column what an array without axes is. Whatever does not fit a column is the
*rest*, which travels by itself, for that step only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALIGNMENT",
    "INFO_BYTES",
    "MAX_ARRAY_KINDS",
    "MAX_COLUMNS",
    "NO_COLUMNS",
    "NUMBER_KINDS",
    "ArrayKind",
    "ColumnLayout",
    "Columns",
    "Frozen",
    "InfoArrays",
    "KeyOrder",
    "Kind",
    "NumberKind",
    "kind_of",
]

MAX_COLUMNS = 64
"""Columns the arrays have room for; further keys travel as part of the rest."""

INFO_BYTES = 1 << 14
"""Bytes for the arrays in one environment's info, unless told otherwise."""

ALIGNMENT = 16
"""Bytes that each column of arrays begins at a multiple of: what any dtype is content with."""


class KeyOrder:
    """The key under which a rest has the order of an info's keys, where columns do not imply it."""


def _exactly_none(_: Any) -> None:
    return None


@dataclass(frozen=True, eq=False)
class NumberKind:
    """Numbers of one type."""

    type: type
    storage: str
    restore: Callable[[Any], Any]
    code: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def stored(self, arrays: InfoArrays, slot: int, start: int) -> NDArray[Any]:
        """A column's cells, as values of this kind are stored in them, ``(n,)``."""
        cells: NDArray[Any] = arrays.cells[slot]
        return cells.view(np.int64) if self.storage == "q" else cells

    def at(self, arrays: InfoArrays, slot: int, start: int, place: int) -> Any:
        """The value in one cell of a column."""
        cells = arrays.cells.view(np.int64) if self.storage == "q" else arrays.cells
        return self.restore(cells[slot, place])

    def values(self, stored: NDArray[Any]) -> NDArray[Any]:
        """What is stored as an array of these numbers."""
        return stored.astype(self.dtype)

    def each(self, values: NDArray[Any]) -> list[Any]:
        """The values of an array, as dicts have them."""
        return values.tolist() if self.type in (int, float, bool) else list(values)


_TYPES: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (int, "q", int),
    (float, "d", float),
    (bool, "q", bool),
    (type(None), "", _exactly_none),
    (np.bool_, "d", np.bool_),
    (np.float64, "d", np.float64),
    (np.float32, "d", np.float32),
    (np.float16, "d", np.float16),
    *((kind, "q", kind) for kind in (np.int64, np.int32, np.int16, np.int8)),
    *((kind, "q", kind) for kind in (np.uint64, np.uint32, np.uint16, np.uint8)),
)
NUMBER_KINDS = {
    kind: NumberKind(kind, storage, restore, code, np.dtype(np.int64 if kind is int else kind))
    for code, (kind, storage, restore) in enumerate(_TYPES, start=1)
}
"""The kinds of numbers, by their types. In an array of codes, 0 is a cell without a value."""

_NUMBER_OF = {kind.code: kind for kind in NUMBER_KINDS.values()}
MAX_ARRAY_KINDS = 255 - len(NUMBER_KINDS)
"""Kinds of arrays that a group may have at the same time; their codes follow those of numbers."""


@dataclass(frozen=True)
class ArrayKind:
    """Arrays of one dtype, shape and order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """Of one array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def stored(self, arrays: InfoArrays, slot: int, start: int) -> NDArray[Any]:
        """A column's cells, ``(n, *shape)``: as of :class:`NumberKind`."""
        shape = self.shape[::-1] if self.fortran else self.shape
        cells = arrays.bytes[:, start : start + self.nbytes].view(self.dtype)
        cells = cells.reshape(len(cells), *shape)
        return cells.transpose(0, *range(len(shape), 0, -1)) if self.fortran else cells

    def at(self, arrays: InfoArrays, slot: int, start: int, place: int) -> NDArray[Any]:
        """The value in one cell of a column, in memory of its own."""
        row = arrays.bytes[place, start : start + self.nbytes]
        order = "F" if self.fortran else "C"
        return np.ndarray(self.shape, self.dtype, row, order=order).copy(order)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def values(self, stored: NDArray[Any]) -> NDArray[Any]:
        """What is stored, as it is: it shares memory with the columns."""
        return stored

    def each(self, values: NDArray[Any]) -> list[Any]:
        """The values of an array, as dicts have them: in memory of their own."""
        return [values[i, ...].copy("K") for i in range(len(values))]


Kind = NumberKind | ArrayKind
"""What the value in a cell is, exactly."""


def kind_of(value: Any) -> Kind | None:
    """What a value of an info is where it may be in a column; None if it may not.

    Numbers may, Python's and NumPy's, and arrays whose bytes are all there is of them: not those of
    objects, and none of a class that derives from NumPy's.
    """
    number = NUMBER_KINDS.get(type(value))
    if number is not None or type(value) is not np.ndarray:
        return number
    dtype = value.dtype
    if dtype.hasobject or dtype.metadata is not None:
        return None
    return ArrayKind(dtype, value.shape, value.flags.fnc)


@dataclass(frozen=True)
class ColumnLayout:
    """The columns of a group that are in use."""

    keys: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    kinds: tuple[ArrayKind | None, ...] = ()
    nbytes: int = 0

    @property
    def extent(self) -> tuple[int, int]:
        """How many columns, and how many of each environment's bytes, are in use."""
        return len(self.keys), self.nbytes

    def kind(self, code: int) -> Kind:
        """What a code stands for."""
        number = _NUMBER_OF.get(code)
        if number is not None:
            return number
        kind = self.kinds[code - len(NUMBER_KINDS) - 1]
        assert kind is not None
        return kind


NO_COLUMNS = ColumnLayout()


class InfoArrays:
    """The columns of one step's infos."""

    __slots__ = ("bytes", "cells", "kinds")

    def __init__(
        self, cells: NDArray[np.float64], kinds: NDArray[np.uint8], bytes: NDArray[np.uint8]
    ) -> None:
        self.cells = cells
        self.kinds = kinds
        self.bytes = bytes

    @staticmethod
    def shapes(num_envs: int, info_bytes: int) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of the arrays."""
        yield np.dtype(np.float64), (MAX_COLUMNS, num_envs)
        yield np.dtype(np.uint8), (MAX_COLUMNS, num_envs)
        yield np.dtype(np.uint8), (num_envs, -(-info_bytes // ALIGNMENT) * ALIGNMENT)

    def slice(self, lo: int, hi: int) -> InfoArrays:
        """The same arrays for environments ``lo`` to ``hi - 1`` only."""
        return InfoArrays(self.cells[:, lo:hi], self.kinds[:, lo:hi], self.bytes[lo:hi])

    def first(self, columns: int, nbytes: int) -> InfoArrays:
        """The first columns of the same arrays, and the first bytes."""
        return InfoArrays(self.cells[:columns], self.kinds[:columns], self.bytes[:, :nbytes])

    def copy(self) -> InfoArrays:
        """The same values in arrays of their own."""
        return InfoArrays(self.cells.copy(), self.kinds.copy(), self.bytes.copy())

    def copy_numbers(self) -> InfoArrays:
        """As :meth:`copy`, where no bytes are in use."""
        return InfoArrays(self.cells.copy(), self.kinds.copy(), self.bytes)

    def take(self, envs: NDArray[np.intp]) -> InfoArrays:
        """A copy of some environments' values."""
        return InfoArrays(
            self.cells.take(envs, axis=1),
            self.kinds.take(envs, axis=1),
            self.bytes.take(envs, axis=0),
        )


Columns = Mapping[str, tuple[Kind, NDArray[Any], NDArray[np.bool_] | None]]
"""By key, what some infos' values are, the values, and where there are any; None for everywhere."""

Frozen = tuple[Callable[[Any], Any], Any]
"""How to thaw what does not fit the columns of an info, and that, frozen."""
