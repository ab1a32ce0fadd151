"""Info columns: one column per key, with one cell per environment.

Numbers and arrays under string keys are stored in columns, together with their exact kind.
Everything else forms the *rest*, which is sent separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.by_value import has_alias
from xuance_envs.engine.data.memory_layout import round_up

MAX_COLUMNS = 64  # maximum number of columns; values of further keys are pickled in the rest
INFO_BYTES = 1 << 14  # default number of bytes for the arrays in one environment's info
MAX_REORDERINGS = 8  # maximum number; afterwards, infos with another key order store their order
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

_FIRST_ARRAY = len(NUMBER_KINDS) + 1
_ARRAY_CODES = range(_FIRST_ARRAY, _FIRST_ARRAY + MAX_ARRAY_KINDS)


class ColumnTable:
    """Columns of a group's infos, one per key, with one cell per environment.

    The cells of a key have room for the largest array so far under this key.
    """

    def __init__(self, arrays: InfoArrays, on_change: Callable[[], None] = lambda: None) -> None:
        self.keys: list[str] = []
        self.slots: dict[str, int] = {}
        self.version = 0
        self.layout = NO_COLUMNS
        self._arrays = arrays
        self._on_change = on_change
        self._kinds: dict[ArrayKind, int] = {}
        self._sizes: dict[str, int] = {}
        self._reorderings = 0

    def code(self, key: Any, kind: Kind) -> int:
        """Return the code of a kind in a key's column, or 0 if the column does not accept it."""
        if key not in self.slots:
            return 0
        if isinstance(kind, NumberKind):
            return kind.code
        if self._sizes.get(key, -1) < kind.nbytes:
            return 0
        return self._kinds.get(kind, 0)

    def fits(self, kind: Kind) -> bool:
        """Return whether a value of this kind would fit if there were no other columns."""
        return isinstance(kind, NumberKind) or kind.nbytes <= self._arrays.bytes.shape[1]

    def add_columns(self, wanted: Mapping[Any, Kind], orders: Sequence[Sequence[str]] = ()) -> None:
        """Add columns for an info's keys if there is room; this may reorder existing columns."""
        order = self._merge_order(list(wanted), orders)
        kinds, sizes = self._with_arrays(order, wanted)
        if order != self.keys or kinds is not self._kinds:
            self._relayout(order, kinds, sizes)

    def _merge_order(self, wanted: Sequence[Any], orders: Sequence[Sequence[str]]) -> list[str]:
        """Return old and new column keys, in the order of ``wanted`` if ``orders`` permit that."""
        slots = self.slots
        known = [slots[key] for key in wanted if key in slots]
        agrees = is_ascending(known)
        if agrees and len(known) == len(wanted):
            return self.keys
        room = MAX_COLUMNS - len(self.keys)
        new = [key for key in wanted if key not in slots and type(key) is str][:room]
        order = self.keys.copy()
        if not agrees and self._reorderings < MAX_REORDERINGS:
            for slot, other in zip(sorted(known), known, strict=True):
                order[slot] = self.keys[other]
            if all([is_ascending(map(order.index, keys)) for keys in orders]):
                self._reorderings += 1
            else:
                order = self.keys.copy()
        place = len(order)
        for key in reversed(wanted):
            if key in slots:
                place = order.index(key)
            elif key in new:
                order.insert(place, key)
        return order

    def _with_arrays(
        self, order: Sequence[str], wanted: Mapping[Any, Kind]
    ) -> tuple[dict[ArrayKind, int], dict[str, int]]:
        """Add the wanted array kinds; if there is no room, remove unused kinds first."""
        new = {
            key: kind
            for key, kind in wanted.items()
            if isinstance(kind, ArrayKind) and key in order and not self.code(key, kind)
        }
        kinds, sizes = self._kinds, self._sizes
        for key, kind in new.items():
            more = self._with_kind(kinds, sizes, key, kind)
            more = more or self._with_kind(*self._in_use(wanted, kinds, sizes), key, kind)
            kinds, sizes = more or (kinds, sizes)
        return kinds, sizes

    def _with_kind(
        self, kinds: Mapping[ArrayKind, int], sizes: Mapping[str, int], key: str, kind: ArrayKind
    ) -> tuple[dict[ArrayKind, int], dict[str, int]] | None:
        """Add a kind to a column; return None if there is no room."""
        taken = set(kinds.values())
        code = kinds.get(kind) or next((code for code in _ARRAY_CODES if code not in taken), None)
        sizes = {**sizes, key: max(kind.nbytes, sizes.get(key, 0))}
        if code is None or _pack_starts(sizes)[1] > self._arrays.bytes.shape[1]:
            return None
        return {**kinds, kind: code}, sizes

    def _in_use(
        self, wanted: Mapping[Any, Kind], kinds: Mapping[ArrayKind, int], sizes: Mapping[str, int]
    ) -> tuple[dict[ArrayKind, int], dict[str, int]]:
        """Return the array kinds that are in use or wanted, and the column sizes for them."""
        kind_of = {code: kind for kind, code in kinds.items()}
        used: dict[str, set[ArrayKind]] = {}
        for key in sizes:
            codes = self._arrays.kinds[self.slots[key]].tolist() if key in self.slots else []
            found = {kind_of[code] for code in set(codes) if code in kind_of}
            kind = wanted.get(key)
            if isinstance(kind, ArrayKind) and kind in kinds:
                found.add(kind)
            if found:
                used[key] = found
        all_used = set().union(*used.values())
        return (
            {kind: code for kind, code in kinds.items() if kind in all_used},
            {key: max([kind.nbytes for kind in found]) for key, found in used.items()},
        )

    def _relayout(
        self, order: Sequence[str], kinds: dict[ArrayKind, int], sizes: dict[str, int]
    ) -> None:
        unused = iter(range(len(self.keys), MAX_COLUMNS))
        sources = [self.slots[key] if key in self.slots else next(unused) for key in order]
        starts, nbytes = _pack_starts(sizes)
        moved = np.zeros((len(self._arrays.bytes), nbytes), np.uint8)
        for key, start in starts.items():
            if kept := min(sizes[key], self._sizes.get(key, 0)):
                old = self.layout.starts[self.slots[key]]
                moved[:, start : start + kept] = self._arrays.bytes[:, old : old + kept]
        relaid = InfoArrays(self._arrays.cells[sources], self._arrays.kinds[sources], moved)
        kind_of = {code: kind for kind, code in kinds.items()}
        codes = range(_FIRST_ARRAY, max(kind_of, default=0) + 1)
        layout = ColumnLayout(
            tuple(order),
            tuple([starts.get(key, 0) for key in order]),
            tuple(map(kind_of.get, codes)),
            nbytes,
        )
        slots = {key: slot for slot, key in enumerate(order)}
        columns, arrays = slice(len(order)), self._arrays
        self._on_change()
        # No call in between, so that an interrupt finds either all of these updated or none.
        arrays.cells[columns], arrays.kinds[columns] = relaid.cells, relaid.kinds
        arrays.bytes[:, :nbytes] = moved
        self.keys[:], self.slots, self.layout = order, slots, layout
        self._kinds, self._sizes, self.version = kinds, sizes, self.version + 1


def is_ascending(slots: Iterable[int]) -> bool:
    return all([one <= other for one, other in pairwise(slots)])


def _pack_starts(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return each column's byte offset, and the end of the last column."""
    ends = accumulate([round_up(size, ALIGNMENT) for size in sizes.values()], initial=0)
    starts = dict(zip(sizes, ends, strict=False))
    return starts, max([starts[key] + size for key, size in sizes.items()], default=0)
