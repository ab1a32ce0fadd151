"""Which columns a group's infos have: learned from what turns up, within the room there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from xuance_envs.engine.data.info_columns import (
    ALIGNMENT,
    MAX_ARRAY_KINDS,
    MAX_COLUMNS,
    NO_COLUMNS,
    NUMBER_KINDS,
    ArrayKind,
    ColumnLayout,
    InfoArrays,
    Kind,
    NumberKind,
)

__all__ = ["ColumnTable", "is_ascending"]

MAX_REORDERINGS = 8
"""How often columns are put into another order; infos that differ from then on state theirs."""

_FIRST_ARRAY = len(NUMBER_KINDS) + 1
_ARRAY_CODES = range(_FIRST_ARRAY, _FIRST_ARRAY + MAX_ARRAY_KINDS)


class ColumnTable:
    """The columns of a group's infos.

    A column has a key. Numbers of any type have a cell there. Arrays have bytes besides, as many as
    the largest kind of them takes; a kind that is in no cell makes room for others when there is
    too little.
    """

    def __init__(
        self, arrays: InfoArrays, before_change: Callable[[], None] = lambda: None
    ) -> None:
        self.keys: list[str] = []
        self.slots: dict[str, int] = {}
        self.version = 0
        self._arrays = arrays
        self._before_change = before_change
        self._kinds: dict[ArrayKind, int] = {}
        self._sizes: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._reorderings = 0
        self._pending_relayout: tuple[Any, ...] | None = None

    @property
    def layout(self) -> ColumnLayout:
        """The columns as they are now, for those who read them."""
        if not self.keys:
            return NO_COLUMNS
        kinds: list[ArrayKind | None] = [None] * max(
            (code - _FIRST_ARRAY + 1 for code in self._kinds.values()), default=0
        )
        for kind, code in self._kinds.items():
            kinds[code - _FIRST_ARRAY] = kind
        starts = tuple([self._offsets.get(key, 0) for key in self.keys])
        return ColumnLayout(tuple(self.keys), starts, tuple(kinds), self.extent[1])

    @property
    def extent(self) -> tuple[int, int]:
        """How many columns, and how many of each environment's bytes, are in use."""
        ends = [self._offsets[key] + size for key, size in self._sizes.items()]
        return len(self.keys), max(ends, default=0)

    def code(self, key: Any, kind: Kind) -> int:
        """The code of a kind in the column of a key; 0 where the column does not take it."""
        if key not in self.slots:
            return 0
        if isinstance(kind, NumberKind):
            return kind.code
        if self._sizes.get(key, -1) < kind.nbytes:
            return 0
        return self._kinds.get(kind, 0)

    def fits(self, kind: Kind) -> bool:
        """Whether there would be room for a value, were it the only one."""
        return isinstance(kind, NumberKind) or kind.nbytes <= self._arrays.bytes.shape[1]

    def start(self, key: str) -> int:
        """Where a column's arrays begin in an environment's bytes."""
        return self._offsets.get(key, 0)

    def add_columns(self, wanted: Mapping[Any, Kind], orders: Sequence[Sequence[str]] = ()) -> None:
        """Makes columns for the values of an info, as long as there is room, in its order.

        Columns of another order are put into this one, a few times.
        """
        self.finish_relayout()
        order = self._merge_order(list(wanted), orders)
        kinds, sizes = self._with_arrays(order, wanted)
        if order != self.keys or kinds is not self._kinds:
            self._relayout(order, kinds, sizes)

    def _merge_order(self, wanted: Sequence[Any], orders: Sequence[Sequence[str]]) -> list[str]:
        """The keys of the columns with those that are wanted, in their order."""
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
        """The codes of kinds of arrays, and the bytes of columns, with those that are wanted.

        Where there is too little room, what is in no cell goes first.
        """
        new = {
            key: kind
            for key, kind in wanted.items()
            if isinstance(kind, ArrayKind) and key in order and not self.code(key, kind)
        }
        kinds, sizes = self._kinds, self._sizes
        if not new:
            return kinds, sizes
        for key, kind in new.items():
            more = self._with_kind(kinds, sizes, key, kind)
            if more is None:
                kinds_used, sizes_used = self._in_use(wanted, kinds, sizes)
                more = self._with_kind(kinds_used, sizes_used, key, kind)
            if more is not None:
                kinds, sizes = more
        return kinds, sizes

    def _with_kind(
        self, kinds: Mapping[ArrayKind, int], sizes: Mapping[str, int], key: str, kind: ArrayKind
    ) -> tuple[dict[ArrayKind, int], dict[str, int]] | None:
        """The same with one kind more in a column; None if there is no room for it."""
        taken = set(kinds.values())
        free = next((code for code in _ARRAY_CODES if code not in taken), None)
        code = kinds.get(kind, free)
        sizes = {**sizes, key: max(kind.nbytes, sizes.get(key, 0))}
        if code is None or _pack_starts(sizes)[1] > self._arrays.bytes.shape[1]:
            return None
        return {**kinds, kind: code}, sizes

    def _in_use(
        self, wanted: Mapping[Any, Kind], kinds: Mapping[ArrayKind, int], sizes: Mapping[str, int]
    ) -> tuple[dict[ArrayKind, int], dict[str, int]]:
        """What of those is in a cell, or wanted."""
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
        """Puts what is in the arrays where it is to be from now on."""
        unused = iter(range(len(self.keys), MAX_COLUMNS))
        sources = [self.slots[key] if key in self.slots else next(unused) for key in order]
        starts, nbytes = _pack_starts(sizes)
        moved = np.zeros((len(self._arrays.bytes), nbytes), np.uint8)
        for key, start in starts.items():
            kept = min(sizes[key], self._sizes.get(key, 0))
            old = self._offsets.get(key, 0)
            moved[:, start : start + kept] = self._arrays.bytes[:, old : old + kept]
        relaid = InfoArrays(self._arrays.cells[sources], self._arrays.kinds[sources], moved)
        self._before_change()
        self._pending_relayout = order, kinds, sizes, starts, relaid, self.version + 1
        self.finish_relayout()

    def finish_relayout(self) -> None:
        """Does so, or goes on where an interrupt came."""
        if self._pending_relayout is not None:
            order, self._kinds, self._sizes, self._offsets, relaid, self.version = (
                self._pending_relayout
            )
            self._arrays.cells[: len(order)] = relaid.cells
            self._arrays.kinds[: len(order)] = relaid.kinds
            self._arrays.bytes[:, : relaid.bytes.shape[1]] = relaid.bytes
            self.keys[:] = order
            self.slots = {key: slot for slot, key in enumerate(order)}
            self._pending_relayout = None


def is_ascending(slots: Iterable[int]) -> bool:
    """Whether columns come one after the other."""
    return all([one <= other for one, other in pairwise(slots)])


def _pack_starts(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each column's bytes begin, and where the last ones end."""
    ends = list(accumulate([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()]))
    return dict(zip(sizes, [0, *ends], strict=False)), ends[-1] if ends else 0
