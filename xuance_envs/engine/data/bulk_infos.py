"""Infos that come as arrays for all environments at once, into the columns of infos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import MAX_COLUMNS, Frozen, InfoArrays, kind_of

__all__ = ["BulkInfoWriter", "RowRests"]

_ALL = slice(None)


class BulkInfoWriter:
    """Writes one key of many environments' infos at a time.

    Args:
        arrays: of all environments.

    Attributes:
        keys (list[str]): the key of each column in use, in order; only ever grows.
        changes (int): how often it has grown.
        rest (dict): nothing: what does not fit columns is not written.
    """

    def __init__(self, arrays: InfoArrays) -> None:
        self.keys: list[str] = []
        self.changes = 0
        self.rest: dict[int, Any] = {}
        self._arrays = arrays
        self._integers = arrays.cells.view(np.int64)
        self._slots: dict[str, int] = {}
        self._full: dict[int, int] = {}

    def clear(self, at: Any = _ALL) -> None:
        """Removes all keys of some environments."""
        self._arrays.kinds[:, at] = 0
        self._full.clear()

    def write(
        self,
        key: str,
        kind: type,
        values: Any,
        at: Any = _ALL,
        mask: NDArray[np.bool_] | None = None,
    ) -> bool:
        """Writes a key.

        Args:
            key: the key.
            kind: the type its values have in the dicts.
            values: a number, or one for each environment.
            at: the environments.
            mask: which of them have the key; None for all.

        Returns:
            Whether there is a column for it.
        """
        found = kind_of(kind)
        slot = self._slots.get(key)
        if found is None or (slot is None and len(self.keys) == MAX_COLUMNS):
            return False
        if slot is None:
            slot = self._slots[key] = len(self.keys)
            self.keys.append(key)
            self.changes += 1
        code, is_integer = found
        (self._integers if is_integer else self._arrays.cells)[slot, at] = values
        if mask is not None:
            self._full.pop(slot, None)
            self._arrays.kinds[slot, at] = np.where(mask, code, 0)
        elif self._full.get(slot) != code:
            self._arrays.kinds[slot, at] = code
            if at is _ALL:
                self._full[slot] = code
        return True


class RowRests(Mapping[int, Frozen]):
    """By environment, what does not fit columns, as rows of arrays; made into a dict when asked.

    Args:
        parts: arrays by key, with a mask each or None.
        envs: the environments of the rows, ascending.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Any, NDArray[np.bool_] | None]],
        envs: NDArray[np.intp],
    ) -> None:
        self._parts = parts
        self._envs = envs

    def __getitem__(self, env: int) -> Frozen:
        row = int(self._envs.searchsorted(env))
        if row == len(self._envs) or self._envs[row] != env:
            raise KeyError(env)
        return self._row, row

    def __iter__(self) -> Iterator[int]:
        return iter(self._envs.tolist())

    def __len__(self) -> int:
        return len(self._envs) if self._parts else 0

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _row(self, row: int) -> dict[str, Any]:
        return {
            key: np.copy(part[row]) if isinstance(part[row], np.ndarray) else part[row]
            for key, (part, mask) in self._parts.items()
            if mask is None or mask[row]
        }
