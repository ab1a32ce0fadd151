"""Writers of infos into columns: of one environment, or of all environments in one call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.by_value import exact_form
from xuance_envs.engine.data.info_columns import (
    NUMBER_KINDS,
    ArrayKind,
    ColumnTable,
    Frozen,
    InfoArrays,
    KeyOrder,
    Kind,
    NumberKind,
    kind_of,
)
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.space_rows import checked_memoryview
from xuance_envs.engine.serialization import copy_of

# First key of an info, its value's type and column, and the layout of the remaining keys.
_Layout = tuple[Any, Any, Any, Any]

# No info has the key KeyOrder: _END ends a layout, and _REWRITE matches no info.
_END: _Layout = KeyOrder, None, None, None
_REWRITE: _Layout = KeyOrder, None, None, _END

_ALL = slice(None)

# Raised when a column does not accept a value.
_STORE_ERRORS = AttributeError, BufferError, LookupError, NotImplementedError, TypeError, ValueError


@dataclass(slots=True, eq=False)
class _VectorCells:
    """Cells of a column of vectors; ``cells[i] = value`` rejects values of other kinds."""

    _rows: Sequence[memoryview]  # assignment checks and copies in C

    def __setitem__(self, i: int, value: NDArray[Any]) -> None:
        self._rows[i][_ALL] = value  # type: ignore[call-overload]  # NumPy's stubs lack Buffer


class _ArrayCells:
    """Cells of a column of arrays; ``cells[i] = value`` rejects values of other kinds."""

    __slots__ = ("_dtype", "_form", "_fortran", "_shape", "_stored")

    def __init__(self, kind: ArrayKind, stored: NDArray[Any]) -> None:
        self._dtype = kind.dtype
        self._form = exact_form(kind.dtype)
        self._shape = kind.shape
        self._fortran = kind.fortran
        self._stored = stored

    def __setitem__(self, i: int, value: NDArray[Any]) -> None:
        if (
            (value.dtype is not self._dtype and exact_form(value.dtype) != self._form)
            or value.dtype != self._dtype
            or value.shape != self._shape
            or value.flags.fnc != self._fortran
        ):
            raise TypeError
        self._stored[i] = value


# Keys, codes and layout shared by infos with the same keys and value types.
_CachedForm = tuple[Sequence[str], NDArray[np.uint8], _Layout]

_MAX_CACHED_FORMS = 64


def _reset_layouts(layouts: list[_Layout], *caches: dict[Any, Any]) -> None:
    """Invalidate everything that refers to column positions."""
    layouts[:] = [_REWRITE] * len(layouts)
    for cache in caches:
        cache.clear()


class InfoWriter:
    """Writer of a group's infos into columns; the columns have the key order of the infos."""

    def __init__(self, arrays: InfoArrays, freeze: Callable[[Any], Any]) -> None:
        n = arrays.cells.shape[1]
        self.rest: dict[int, Any] = {}
        self.changed = False  # True if keys or types differed from the environment's previous info
        self._freeze = freeze
        self._arrays = arrays
        self._columns: dict[tuple[str, Kind], Any] = {}
        self._layouts: list[_Layout] = [_END] * n
        # Indexed by an info's keys and value types.
        self._cached_forms: dict[Any, _CachedForm] = {}
        # Not a bound method: a reference cycle would need the garbage collector.
        on_change = partial(_reset_layouts, self._layouts, self._columns, self._cached_forms)
        self.table = ColumnTable(arrays, on_change)
        # By environment: the column keys of its info, or () if they are not in the columns' order.
        self._keys_in_order: list[Sequence[str]] = [()] * n
        # By environment and key: an array kind without a column, and its count of consecutive uses.
        self._candidates: list[dict[Any, tuple[Kind, int]]] = [{}] * n

    def forget(self) -> None:
        """Make the next writes store all cells, because the cells may have been overwritten."""
        n = len(self._layouts)
        self._layouts[:], self._keys_in_order[:] = [_REWRITE] * n, [()] * n

    def write(self, i: int, info: dict[str, Any]) -> None:
        layout = self._layouts[i]
        try:
            for key, value in info.items():
                expected, kind, column, layout = layout
                if type(value) is not kind or (key is not expected and key != expected):
                    break
                column[i] = value
            else:
                if layout is _END and (type(info) is dict or isinstance(info, dict)):
                    return
        except _STORE_ERRORS:
            pass  # the layout differs from that of this environment's last info
        self._rewrite(i, info)

    def _rewrite(self, i: int, info: dict[str, Any]) -> None:
        self.changed = True
        if not isinstance(info, dict):
            raise BadValueError(f"info: expected a dict, got {type(info).__name__}")
        form = (*info, *map(type, info.values()))
        if form in self._cached_forms and self._write_cached(i, info, self._cached_forms[form]):
            return
        table = self.table
        self._keys_in_order[i] = ()
        kinds = {key: kind for key, value in info.items() if (kind := kind_of(value)) is not None}
        table.add_columns(self._wanted(i, kinds), self._keys_in_order)
        columns: list[tuple[str, type, Any]] = []
        rest: dict[Any, Any] = {}
        last, in_order = -1, True
        self._arrays.kinds[:, i] = 0
        for key, value in info.items():
            code = table.code(key, kinds[key]) if key in kinds else 0
            if not code:
                rest[key] = value
                continue
            slot, kind = table.slots[key], kinds[key]
            column = self._column(key, kind)
            try:
                column[i] = value
            except (ValueError, OverflowError):  # an integer beyond 64 bits
                rest[key] = value
                continue
            self._arrays.kinds[slot, i] = code
            columns.append((key, type(value), column))
            in_order = in_order and slot > last and not rest
            last = slot
        if in_order:
            self._keys_in_order[i] = [key for key, _, _ in columns]
        else:
            rest[KeyOrder] = tuple(info)
        layout = _REWRITE if rest else _END
        for column in () if rest else reversed(columns):
            layout = *column, layout
        self._layouts[i] = layout
        if rest:
            self.rest[i] = self._freeze(rest)
        elif all([isinstance(kind, NumberKind) for kind in kinds.values()]):
            if len(self._cached_forms) == _MAX_CACHED_FORMS:
                self._cached_forms.clear()
            codes = self._arrays.kinds[:, i].copy()
            self._cached_forms[form] = self._keys_in_order[i], codes, layout

    def _write_cached(self, i: int, info: Mapping[str, Any], cached: _CachedForm) -> bool:
        """Store an info whose keys and value types are cached; return False on integer overflow."""
        self._keys_in_order[i], self._arrays.kinds[:, i], self._layouts[i] = cached
        layout, self._candidates[i] = self._layouts[i], {}
        try:
            for value in info.values():
                _, _, column, layout = layout
                column[i] = value
        except (ValueError, OverflowError):
            return False
        return True

    def _wanted(self, i: int, kinds: Mapping[Any, Kind]) -> dict[Any, Kind]:
        """Return the kinds in an info that already have columns or should get them."""
        table, before = self.table, self._candidates[i]
        wanted: dict[Any, Kind] = {}
        candidates: dict[Any, tuple[Kind, int]] = {}
        for key, kind in kinds.items():
            if isinstance(kind, NumberKind) or table.code(key, kind):
                wanted[key] = kind
            elif table.fits(kind):
                seen, count = before.get(key, (None, 0))
                count = count + 1 if seen == kind else 1
                candidates[key] = kind, count
                # A column gets a new kind only if two consecutive infos have it. Otherwise, values
                # of changing shape would change the layout in every step. Further attempts back
                # off exponentially, because there may be no room.
                if count & (count - 1) == 0 and (count > 1 or key not in table.slots):
                    wanted[key] = kind
        self._candidates[i] = candidates
        return wanted

    def _column(self, key: str, kind: Kind) -> Any:
        """Return the fastest object for storing values of this kind in a key's column."""
        column = self._columns.get((key, kind))
        if column is None:
            slot = self.table.slots[key]
            stored = kind.stored(self._arrays, slot, self.table.layout.starts[slot])
            if isinstance(kind, NumberKind):
                # A memoryview is the fastest way to store an int or a float.
                column = stored.data if kind.storage else [None] * len(stored)
            else:
                rows = [checked_memoryview(row) for row in stored] if stored.ndim == 2 else []
                vectors = [row for row in rows if row is not None]
                column = _VectorCells(vectors) if vectors else _ArrayCells(kind, stored)
            self._columns[key, kind] = column
        return column


class BulkInfoWriter:
    def __init__(self, arrays: InfoArrays) -> None:
        self.rest: dict[int, Any] = {}
        self.table = ColumnTable(arrays)
        self._arrays = arrays
        self._full: dict[str, int] = {}

    def clear(self, at: Any = _ALL) -> None:
        self._arrays.kinds[:, at] = 0
        self._full.clear()

    def keep(self, keys: Collection[str]) -> None:
        """Remove the values of all keys except these."""
        for key, slot in self.table.slots.items():
            if key not in keys:
                self._arrays.kinds[slot] = 0
                self._full.pop(key, None)

    def write(
        self,
        key: str,
        kind: Kind | None,
        values: Any,
        at: Any = _ALL,
        mask: NDArray[np.bool_] | None = None,
    ) -> bool:
        """Write a key's values; return False if they fit no column."""
        table = self.table
        if kind is None or not table.fits(kind):
            return False
        code = table.code(key, kind)
        if not code:
            table.add_columns({**dict.fromkeys(table.keys, NUMBER_KINDS[int]), key: kind})
            code = table.code(key, kind)
            if not code:
                return False
        slot = table.slots[key]
        kind.stored(self._arrays, slot, table.layout.starts[slot])[at] = values
        if mask is not None:
            self._full.pop(key, None)
            self._arrays.kinds[slot, at] = np.where(mask, code, 0)
        elif self._full.get(key) != code:
            self._arrays.kinds[slot, at] = code
            if at is _ALL:
                self._full[key] = code
        return True


def info_parts(infos: Mapping[str, Any]) -> Iterator[tuple[str, Any, NDArray[np.bool_] | None]]:
    """Yield the keys of Gymnasium's batched infos, with their values and masks."""
    masks = {f"_{key}" for key in infos}
    for key, part in infos.items():
        if isinstance(part, np.ndarray | dict) and key not in masks:
            yield key, part, infos.get(f"_{key}")


class InfoRows:
    """Copied values of info keys; ``rows[row]`` builds the dict of one environment."""

    def __init__(self, parts: Iterable[tuple[str, Any, NDArray[np.bool_] | None]]) -> None:
        self._parts = [(key, _rows_of(part), copy_of(mask)) for key, part, mask in parts]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, row: int) -> dict[str, Any]:
        info = {}
        for key, part, mask in self._parts:
            if mask is None or mask[row]:
                value = part[row]
                info[key] = value.copy() if isinstance(value, np.ndarray) else value
        return info


def _rows_of(part: Any) -> Any:
    """Return copied values of which ``[row]`` is the value of one environment."""
    return InfoRows(info_parts(part)) if isinstance(part, dict) else copy_of(np.array(part))


class LazyRowExtras(Mapping[int, Frozen]):
    """Info values outside columns, by environment; an environment's dict is built on use."""

    def __init__(self, rows: InfoRows, envs: NDArray[np.intp]) -> None:
        self._rows = rows
        self._envs = envs

    def __getitem__(self, env: int) -> Frozen:
        row = int(self._envs.searchsorted(env))
        if row == len(self._envs) or self._envs[row] != env:
            raise KeyError(env)
        return self._rows.__getitem__, row

    def __iter__(self) -> Iterator[int]:
        return iter(self._envs.tolist())

    def __len__(self) -> int:
        return len(self._envs) if len(self._rows) else 0

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def rows_of_infos(infos: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    return {
        key: rows_of_infos(part, rows) if isinstance(part, dict) else part[rows]
        for key, part in infos.items()
        if isinstance(part, np.ndarray | dict)
    }


def with_final_infos(
    infos: Mapping[str, Any], final_info: Mapping[str, Any], ended: NDArray[np.intp], count: int
) -> dict[str, Any]:
    """Return the step's infos, with those of ended episodes taken from ``final_info``."""
    given, final = (
        {key: (part, mask) for key, part, mask in info_parts(each)} for each in (infos, final_info)
    )
    absent = None, False
    combined: dict[str, Any] = {}
    for key in given | final:
        (part, mask), (last, last_mask) = (each.get(key, absent) for each in (given, final))
        present, at_end = (
            np.broadcast_to(True if each is None else each, count) for each in (mask, last_mask)
        )
        present = present.copy()
        present[ended] = at_end[ended]
        combined[key], combined[f"_{key}"] = _merged(part, last, ended, count), present
    return combined


def _merged(part: Any, last: Any, ended: NDArray[np.intp], count: int) -> Any:
    """Return the rows of ``part``, with those of ended episodes taken from ``last``."""
    if part is None or last is None:
        return last if part is None else part
    kinds = [(each.dtype, each.shape) for each in (part, last) if isinstance(each, np.ndarray)]
    if len(kinds) == 2 and kinds[0] == kinds[1]:
        merged: Any = part.copy()
        merged[ended] = last[ended]
        return merged
    rows, last_rows = (
        InfoRows(info_parts(each)) if isinstance(each, dict) else each for each in (part, last)
    )
    merged = np.full(count, None, object)
    for row in range(count):
        merged[row] = rows[row]
    for row in ended.tolist():
        merged[row] = last_rows[row]
    return merged
