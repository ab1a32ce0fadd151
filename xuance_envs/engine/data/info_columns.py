"""Info columns: one column per key, with one cell per environment.

Numbers and arrays under string keys are stored in columns, together with their exact kind.
Everything else forms the *rest*, which is sent separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.by_value import has_alias
from xuance_envs.engine.data.memory_layout import round_up

MAX_COLUMNS = 64  # maximum number of columns; values of further keys are pickled in the rest
INFO_BYTES = 1 << 14  # default number of bytes for the arrays in one environment's info
ALIGNMENT = 16  # alignment of array columns in bytes; sufficient for every dtype


class KeyOrder:
    """Key under which the rest stores an info's key order, if the columns do not define it."""


@dataclass(frozen=True, eq=False)
class NumberKind:
    type: type
    storage: str  # "d" for floats, "q" for integers, "" for None
    code: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def stored(self, arrays: InfoArrays, slot: int, start: int) -> NDArray[Any]:
        """Return a column as an array ``(n,)`` of this kind's storage format."""
        cells: NDArray[Any] = arrays.cells[slot]
        return cells.view(np.int64) if self.storage == "q" else cells

    def at(self, arrays: InfoArrays, slot: int, start: int, place: int) -> Any:
        """Return the value in one cell."""
        cells = arrays.cells.view(np.int64) if self.storage == "q" else arrays.cells
        return self.type(cells[slot, place]) if self.storage else None

    def values(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Convert stored values to this kind's dtype."""
        return stored.astype(self.dtype)

    def each(self, values: NDArray[Any]) -> list[Any]:
        """Return an array's elements as values for info dicts."""
        return values.tolist() if self.type in (int, float, bool) else list(values)


_STORAGE: dict[type, str] = {
    **{int: "q", float: "d", bool: "q", type(None): ""},
    **dict.fromkeys((np.bool_, np.float64, np.float32, np.float16), "d"),
    **dict.fromkeys((np.int64, np.int32, np.int16, np.int8), "q"),
    **dict.fromkeys((np.uint64, np.uint32, np.uint16, np.uint8), "q"),
}
# Number kinds by type. Code 0 marks a cell without a value.
NUMBER_KINDS = {
    kind: NumberKind(kind, storage, code, np.dtype(np.int64 if kind is int else kind))
    for code, (kind, storage) in enumerate(_STORAGE.items(), start=1)
}

_NUMBER_OF = {kind.code: kind for kind in NUMBER_KINDS.values()}
MAX_ARRAY_KINDS = 255 - len(NUMBER_KINDS)  # per group; their codes follow the number kinds'


@dataclass(frozen=True)
class ArrayKind:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def stored(self, arrays: InfoArrays, slot: int, start: int) -> NDArray[Any]:
        """Return a column as an array ``(n, *shape)``."""
        shape = self.shape[::-1] if self.fortran else self.shape
        cells = arrays.bytes[:, start : start + self.nbytes].view(self.dtype)
        cells = cells.reshape(len(cells), *shape)
        return cells.transpose(0, *range(len(shape), 0, -1)) if self.fortran else cells

    def at(self, arrays: InfoArrays, slot: int, start: int, place: int) -> NDArray[Any]:
        """Return a copy of the value in one cell."""
        row = arrays.bytes[place, start : start + self.nbytes]
        order = "F" if self.fortran else "C"
        return np.ndarray(self.shape, self.dtype, row, order=order).copy(order)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def values(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the stored values themselves, without a copy."""
        return stored

    def each(self, values: NDArray[Any]) -> list[Any]:
        """Return copies of an array's rows as values for info dicts."""
        return [values[i, ...].copy("K") for i in range(len(values))]


Kind = NumberKind | ArrayKind


def kind_of(value: Any) -> Kind | None:
    """Return the column kind of a number or plain array; None for any other value."""
    number = NUMBER_KINDS.get(type(value))
    if number is not None or type(value) is not np.ndarray:
        return number
    dtype = value.dtype
    if dtype.hasobject or dtype.metadata is not None or has_alias(dtype):
        return None
    return ArrayKind(dtype, value.shape, value.flags.fnc)


@dataclass(frozen=True)
class ColumnLayout:
    keys: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    kinds: tuple[ArrayKind | None, ...] = ()
    nbytes: int = 0

    @property
    def extent(self) -> tuple[int, int]:
        """Number of columns, and of bytes per environment, that are in use."""
        return len(self.keys), self.nbytes

    def kind(self, code: int) -> Kind:
        number = _NUMBER_OF.get(code)
        if number is not None:
            return number
        kind = self.kinds[code - len(NUMBER_KINDS) - 1]
        assert kind is not None
        return kind


NO_COLUMNS = ColumnLayout()


@dataclass(slots=True, eq=False)
class InfoArrays:
    cells: NDArray[np.float64]
    kinds: NDArray[np.uint8]
    bytes: NDArray[np.uint8]

    @staticmethod
    def shapes(num_envs: int, info_bytes: int) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
        yield np.dtype(np.float64), (MAX_COLUMNS, num_envs)
        yield np.dtype(np.uint8), (MAX_COLUMNS, num_envs)
        yield np.dtype(np.uint8), (num_envs, round_up(info_bytes, ALIGNMENT))

    def slice(self, lo: int, hi: int) -> InfoArrays:
        return InfoArrays(self.cells[:, lo:hi], self.kinds[:, lo:hi], self.bytes[lo:hi])

    def first(self, columns: int, nbytes: int) -> InfoArrays:
        return InfoArrays(self.cells[:columns], self.kinds[:columns], self.bytes[:, :nbytes])

    def copy(self) -> InfoArrays:
        return InfoArrays(self.cells.copy(), self.kinds.copy(), self.bytes.copy())

    def with_numbers(self, cells: Any, kinds: Any) -> InfoArrays:
        """Return info arrays whose cells and kinds are views of these read-only buffers."""
        cells = np.ndarray(self.cells.shape, self.cells.dtype, cells)
        return InfoArrays(cells, np.ndarray(self.kinds.shape, self.kinds.dtype, kinds), self.bytes)

    def take(self, envs: NDArray[np.intp]) -> InfoArrays:
        cells, kinds = self.cells.take(envs, axis=1), self.kinds.take(envs, axis=1)
        return InfoArrays(cells, kinds, self.bytes.take(envs, axis=0))


# Each key's kind, values and mask of infos that have it; the mask is None if all have it.
Columns = Mapping[str, tuple[Kind, NDArray[Any], NDArray[np.bool_] | None]]

# Function that restores an info's rest, and its argument: the copied or pickled rest.
Frozen = tuple[Callable[[Any], Any], Any]
