"""Info columns written for all environments in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.column_table import ColumnTable
from xuance_envs.engine.data.info_columns import NUMBER_KINDS, InfoArrays, Kind

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
        kind.stored(self._arrays, slot, table.start(key))[at] = values
        if mask is not None:
            self._full.pop(key, None)
            self._arrays.kinds[slot, at] = np.where(mask, code, 0)
        elif self._full.get(key) != code:
            self._arrays.kinds[slot, at] = code
            if at is _ALL:
                self._full[key] = code
        return True
