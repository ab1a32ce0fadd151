"""Writes what environments say in their infos into columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from xuance_envs.engine.data.info_columns import (
    CODES,
    MAX_COLUMNS,
    STORAGE,
    Columns,
    InfoArrays,
    KeyOrder,
    as_stored,
    scalars,
)
from xuance_envs.engine.data.space_layout import BadValueError

__all__ = ["InfoWriter"]

MAX_REORDERINGS = 8
"""How often columns are put into another order; infos that differ from then on state theirs."""


_Layout = Sequence[tuple[Any, type, Any]]
"""The keys of an info, in its order, and each one's type and column."""

_EMPTY: _Layout = ()
_WRITE_ANEW: _Layout = ((KeyOrder, KeyOrder, ()),)  # no info is laid out like it


class InfoWriter:
    """Writes the infos of a group's environments into its arrays.

    Columns are in the order that infos have their keys in, and what does not fit them comes after;
    an info of another order has it in its rest.

    Args:
        arrays: the group's slice of them.
        freeze: makes a copy of what does not fit the arrays, such that the environment cannot
            change it any more.

    Attributes:
        keys (list[str]): the key of each column in use, in order.
        changes (int): how often the keys have changed.
        rest (dict[int, Any]): by environment, a frozen dict of what did not fit its columns.
    """

    def __init__(self, arrays: InfoArrays, freeze: Callable[[Any], Any]) -> None:
        self.keys: list[str] = []
        self.changes = 0
        self._reorderings = 0
        self._arranging: tuple[Sequence[str], InfoArrays, int] | None = None
        self.rest: dict[int, Any] = {}
        self._freeze = freeze
        self._slots: dict[str, int] = {}
        self._arrays = arrays
        self._kinds = arrays.kinds
        integers = arrays.cells.view(np.int64)
        # One row of the arrays each, as what an int or a float is most quickly stored into.
        self._columns: dict[str, list[Any]] = {
            "d": [memoryview(row) for row in arrays.cells],
            "q": [memoryview(row) for row in integers],
            "": [[None] * arrays.cells.shape[1]] * MAX_COLUMNS,
        }
        self._layouts: list[_Layout] = [_EMPTY] * arrays.cells.shape[1]
        # By environment, the keys of its info that are in columns and whose order these imply.
        self._implied: list[Sequence[str]] = [()] * arrays.cells.shape[1]

    def write(self, i: int, info: dict[str, Any]) -> None:
        """Stores the info of the group's environment i.

        Raises:
            BadValueError: it is not a dict.
        """
        layout = self._layouts[i]
        place = 0
        try:
            for key in info:
                known, kind, column = layout[place]
                value = info[key]
                if key != known or type(value) is not kind:
                    break
                column[i] = value
                place += 1
            else:
                if place == len(layout) and (place or type(info) is dict):
                    return
        except (LookupError, TypeError, ValueError):
            pass  # not laid out as this environment's last info was
        self._write_anew(i, info)

    def _write_anew(self, i: int, info: dict[str, Any]) -> None:
        if not isinstance(info, dict):
            raise BadValueError(f"expected an info that is a dict, got a {type(info).__name__}")
        self._implied[i] = ()
        self._learn([key for key, value in info.items() if type(value) in CODES])
        layout: list[tuple[str, type, Any]] = []
        rest: dict[Any, Any] = {}
        last, in_order = -1, True
        self._kinds[:, i] = 0
        for key, value in info.items():
            code = CODES.get(type(value), 0)
            slot = self._slots.get(key) if code else None
            if slot is None:
                rest[key] = value
                continue
            column = self._columns[STORAGE[code]][slot]
            try:
                column[i] = value
            except (ValueError, OverflowError):  # an integer beyond 64 bits
                rest[key] = value
                continue
            self._kinds[slot, i] = code
            layout.append((key, type(value), column))
            in_order = in_order and slot > last and not rest
            last = slot
        if in_order:
            self._implied[i] = [key for key, _, _ in layout]
        else:
            rest[KeyOrder] = tuple(info)
        self._layouts[i] = _WRITE_ANEW if rest else layout
        if rest:
            self.rest[i] = self._freeze(rest)

    def write_columns(self, places: Sequence[int], columns: Columns) -> None:
        """Stores the infos of some environments, which are numbers of one type by key.

        Args:
            places: the environments.
            columns: as :class:`~xuance_envs.engine.data.info_batch.InfoBatch` gives them, in that
                order.
        """
        at = np.asarray(places)
        for i in places:
            self._layouts[i], self._implied[i] = _WRITE_ANEW, ()
        self._learn(list(columns))
        self._kinds[:, at] = 0
        rests: dict[int, dict[Any, Any]] = {}
        slots = [self._slots.get(key, MAX_COLUMNS) for key in columns]
        if _is_ascending(slots):
            keys = [key for key in columns if key in self._slots]
            for i in places:
                self._implied[i] = keys
        else:
            rests = {i: {KeyOrder: tuple(columns)} for i in places}
        for slot, (key, (kind, values, mask)) in zip(slots, columns.items(), strict=True):
            if slot == MAX_COLUMNS:
                for position in mask.nonzero()[0].tolist():
                    (value,) = scalars(kind, values[position : position + 1])
                    rests.setdefault(places[position], {})[key] = value
                continue
            cells = as_stored(self._arrays.cells, CODES[kind])
            cells[slot, at] = values
            self._kinds[slot, at] = mask * np.uint8(CODES[kind])
        self.rest.update((i, self._freeze(rest)) for i, rest in rests.items())

    def _learn(self, numbers: Sequence[Any]) -> None:
        """Makes columns for the keys of an info's numbers, as long as there are any, in its order.

        Columns of another order are put into this one, a few times, unless an info needs theirs.
        """
        self._finish_arranging()
        slots = self._slots
        known = [slots[key] for key in numbers if key in slots]
        agrees = _is_ascending(known)
        if agrees and len(known) == len(numbers):
            return
        room = MAX_COLUMNS - len(self.keys)
        new = [key for key in numbers if key not in slots and type(key) is str][:room]
        order = self.keys.copy()
        if not agrees and self._reorderings < MAX_REORDERINGS:
            for slot, other in zip(sorted(known), known, strict=True):
                order[slot] = self.keys[other]
            if all([_is_ascending(map(order.index, keys)) for keys in self._implied]):
                self._reorderings += 1
            else:
                order = self.keys.copy()
        place = len(order)
        for key in reversed(numbers):
            if key in slots:
                place = order.index(key)
            elif key in new:
                order.insert(place, key)
        if order != self.keys:
            self._arrange(order)

    def _arrange(self, order: Sequence[str]) -> None:
        """Puts the columns in use into another order, with new ones among them."""
        unused = iter(range(len(self.keys), MAX_COLUMNS))
        sources = [self._slots[key] if key in self._slots else next(unused) for key in order]
        self._layouts[:] = [_WRITE_ANEW] * len(self._layouts)
        arranged = InfoArrays(self._arrays.cells[sources], self._kinds[sources])
        self._arranging = order, arranged, self.changes + 1
        self._finish_arranging()

    def _finish_arranging(self) -> None:
        """Does so, or goes on where an interrupt came."""
        if self._arranging is not None:
            order, arranged, self.changes = self._arranging
            self._arrays.cells[: len(order)] = arranged.cells
            self._kinds[: len(order)] = arranged.kinds
            self.keys[:] = order
            self._slots = {key: slot for slot, key in enumerate(order)}
            self._arranging = None


def _is_ascending(slots: Iterable[int]) -> bool:
    return all([one <= other for one, other in pairwise(slots)])
