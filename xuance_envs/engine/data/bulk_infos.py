"""Info columns written for all environments in one call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.column_table import ColumnTable
from xuance_envs.engine.data.info_columns import NUMBER_KINDS, Frozen, InfoArrays, Kind
from xuance_envs.engine.serialization import copy_of

_ALL = slice(None)


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
