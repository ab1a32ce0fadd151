"""The columns that numbers of infos lie in, one row per key and one cell per environment.

Of an info dict, numbers under string keys go into columns, together with their exact type.
Whatever does not fit a column is the *rest*, which travels by itself, for that step only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CODES",
    "MAX_COLUMNS",
    "RESTORE",
    "STORAGE",
    "Columns",
    "Frozen",
    "InfoArrays",
    "KeyOrder",
    "as_stored",
    "kind_of",
    "scalars",
    "type_of",
]

MAX_COLUMNS = 64
"""Columns the arrays have room for; further keys travel as part of the rest."""


class KeyOrder:
    """The key under which a rest has the order of an info's keys, where columns do not imply it."""


def _exactly_none(_: Any) -> None:
    return None


# A cell's kind is its place in this table, from 1; 0 marks an absent one. A float64 holds every
# value of the types marked "d", an int64 of those marked "q".
_KINDS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
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
CODES = {kind: code for code, (kind, _, _) in enumerate(_KINDS, start=1)}
STORAGE = {code: storage for code, (_, storage, _) in enumerate(_KINDS, start=1)}
RESTORE = {code: restore for code, (_, _, restore) in enumerate(_KINDS, start=1)}


def kind_of(kind: type) -> tuple[int, bool] | None:
    """The code of a type of numbers, and whether they are kept as integers; None if it has none."""
    code = CODES.get(kind)
    return None if code is None else (code, STORAGE[code] == "q")


class InfoArrays:
    """The numbers of one step's infos.

    Args:
        cells: ``(MAX_COLUMNS, n)`` float64: the values, integers as the same bits of an int64.
        kinds: ``(MAX_COLUMNS, n)`` uint8: the type of each cell's value, 0 where there is none.
    """

    def __init__(self, cells: NDArray[np.float64], kinds: NDArray[np.uint8]) -> None:
        self.cells = cells
        self.kinds = kinds

    @staticmethod
    def shapes(num_envs: int) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of the two arrays."""
        yield np.dtype(np.float64), (MAX_COLUMNS, num_envs)
        yield np.dtype(np.uint8), (MAX_COLUMNS, num_envs)

    def slice(self, lo: int, hi: int) -> InfoArrays:
        """The same arrays for environments ``lo`` to ``hi - 1`` only."""
        return InfoArrays(self.cells[:, lo:hi], self.kinds[:, lo:hi])

    def first(self, columns: int) -> InfoArrays:
        """The first columns of the same arrays."""
        return InfoArrays(self.cells[:columns], self.kinds[:columns])

    def copy(self) -> InfoArrays:
        """The same numbers in arrays of their own."""
        return InfoArrays(self.cells.copy(), self.kinds.copy())

    def take(self, envs: NDArray[np.intp]) -> InfoArrays:
        """A copy of some environments' numbers."""
        return InfoArrays(self.cells.take(envs, axis=1), self.kinds.take(envs, axis=1))


Columns = Mapping[str, tuple[type, NDArray[Any], NDArray[np.bool_]]]
"""By key, the type of some infos' values, the values, and where there are any."""

Frozen = tuple[Callable[[Any], Any], Any]
"""How to thaw what does not fit the columns of an info, and that, frozen."""


def type_of(code: int) -> type:
    """The type of numbers that a code stands for."""
    return _KINDS[code - 1][0]


def as_stored(cells: NDArray[np.float64], code: int) -> NDArray[Any]:
    """The cells as what values of this kind are stored as."""
    return cells.view(np.int64) if STORAGE[code] == "q" else cells


def scalars(kind: type, array: NDArray[Any]) -> list[Any]:
    """The values of an array, as scalars of a type."""
    return array.tolist() if kind in (int, float, bool) else list(array)
