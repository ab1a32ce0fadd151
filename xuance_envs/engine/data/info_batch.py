"""Infos of one step, copied out of the arrays; dicts are built on access."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import (
    NO_COLUMNS,
    NUMBER_KINDS,
    ArrayKind,
    ColumnLayout,
    Columns,
    Frozen,
    InfoArrays,
    KeyOrder,
    Kind,
    NumberKind,
)

NO_RESTS: Mapping[int, Frozen] = {}


@dataclass(slots=True, eq=False)
class InfoBatch:
    """Copied columns and extra values from which info dicts are built."""

    arrays: InfoArrays
    layouts: Sequence[ColumnLayout]
    group_of: NDArray[np.intp]
    rest: Mapping[int, Frozen]

    def build(self, position: int, env: int) -> dict[Any, Any]:
        """Build the info dict of environment ``env``, at ``position`` in this batch."""
        info: dict[Any, Any] = {}
        layout = self.layouts[self.group_of[env]]
        codes = self.arrays.kinds[:, position].tolist() if len(self.arrays.kinds) else []
        for slot, (key, code) in enumerate(zip(layout.keys, codes, strict=False)):
            if code:
                start = layout.starts[slot]
                info[key] = layout.kind(code).at(self.arrays, slot, start, position)
        if env in self.rest:
            info.update(_thawed(self.rest[env]))
            order = info.pop(KeyOrder, None)
            if order is not None:
                info = {key: info[key] for key in order if key in info}
        return info

    def with_values(self, key: str, values: Mapping[int, Callable[[], Any]]) -> InfoBatch:
        rest = dict(self.rest)
        for env, value in values.items():
            rest[env] = partial(_thaw_with, key, value), rest.get(env)
        return InfoBatch(self.arrays, self.layouts, self.group_of, rest)

    def column(self, key: str, envs: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return a key's values and the mask of infos that have it; ``envs[k]`` is info k's env."""
        if (whole := self.uniform_column(key)) is not None:
            return whole, np.ones(len(envs), np.bool_)
        parts = self._values_by_kind(key, envs)
        others = {}
        for position, env in enumerate(envs.tolist() if self.rest else ()):
            if env in self.rest and key in (rest := _thawed(self.rest[env])):
                others[position] = rest[key]
        mask = np.zeros(len(envs), np.bool_)
        for _, at, _ in parts:
            mask[at] = True
        kinds = {kind for kind, _, _ in parts}
        values: NDArray[Any] | None = None
        if not others and len(kinds) == 1 and NUMBER_KINDS[type(None)] not in kinds:
            (kind,) = kinds
            values = np.zeros((len(envs), *kind.shape), kind.dtype)
        elif not others and all([isinstance(k, NumberKind) and k.storage for k in kinds]):
            values = np.zeros(len(envs))
        if values is not None:
            for _, at, stored in parts:
                values[at] = stored
            return values, mask
        values = np.full(len(envs), None, dtype=object)
        for position in mask.nonzero()[0].tolist():
            values[position] = self.build(position, int(envs[position]))[key]
        for position, value in others.items():
            values[position] = value
            mask[position] = True
        return values, mask

    def may_have(self, key: str) -> bool:
        return bool(self.rest) or any([key in layout.keys for layout in self.layouts])

    def uniform_column(self, key: str) -> NDArray[Any] | None:
        """Return a key's values if all infos have values of one kind (fast path), else None."""
        first = self.layouts[0]
        if self.rest or key not in first.keys or not self._same_layouts():
            return None
        slot = first.keys.index(key)
        codes = self.arrays.kinds[slot]
        code = int(codes[0]) if len(codes) else 0
        if not code or not (codes == code).all():
            return None
        kind = first.kind(code)
        if kind is NUMBER_KINDS[type(None)]:
            return None
        values = kind.values(kind.stored(self.arrays, slot, first.starts[slot]))
        return values.copy() if isinstance(kind, ArrayKind) else values

    def columns(self, envs: NDArray[np.intp]) -> Columns | None:
        """Return all keys' kinds, values and masks; None if a key has two kinds or no column."""
        if self.rest:
            return None
        if not len(self.arrays.kinds):
            return {}
        if self._same_layouts():
            found, _ = self._common_columns()
            return found
        columns: dict[str, tuple[Kind, NDArray[Any], NDArray[np.bool_] | None]] = {}
        for key in dict.fromkeys(key for layout in self.layouts for key in layout.keys):
            kinds = {kind for kind, _, _ in self._values_by_kind(key, envs)}
            if len(kinds) > 1 or NUMBER_KINDS[type(None)] in kinds:
                return None
            for kind in kinds:
                columns[key] = kind, *self.column(key, envs)
        return columns

    def _common_columns(self) -> tuple[Columns | None, bool]:
        """Return (:meth:`columns` for one common layout, True if all infos have all keys)."""
        columns: dict[str, tuple[Kind, NDArray[Any], NDArray[np.bool_] | None]] = {}
        arrays, layout = self.arrays, self.layouts[0]
        count = arrays.kinds.shape[1]
        every_code = arrays.kinds.tobytes()  # faster to inspect than arrays for few environments
        all_full = True
        for slot, key in enumerate(layout.keys[: len(arrays.kinds)]):
            codes = every_code[slot * count : (slot + 1) * count]
            code = codes[0] if codes else 0
            is_full = codes.count(code) == count
            if not is_full:
                all_full = False
                code = max(codes)
            if not code:
                continue
            kind, mask = layout.kind(code), None
            if kind is NUMBER_KINDS[type(None)]:
                return None, False
            values = kind.stored(arrays, slot, layout.starts[slot])
            if not is_full:
                mask = arrays.kinds[slot] == code
                if arrays.kinds[slot, ~mask].any():
                    return None, False
                values = values.copy("K")
                values[~mask] = np.zeros((), values.dtype)
            columns[key] = kind, kind.values(values), mask
        return columns, all_full

    def _same_layouts(self) -> bool:
        first = self.layouts[0]
        return len(self.layouts) == 1 or all([layout is first for layout in self.layouts])

    def dicts(
        self, envs: NDArray[np.intp], key: str | None = None, values: Sequence[Any] = ()
    ) -> list[dict[Any, Any]]:
        """Build all info dicts; add ``key`` to each, with the values in ``values``."""
        if not (self.rest or len(self.arrays.kinds)):
            return [{} for _ in range(len(envs))] if key is None else [{key: v} for v in values]
        columns, all_full = None, False
        if not self.rest and self._same_layouts():
            columns, all_full = self._common_columns()
        if columns and all_full:
            keys = [*columns]
            each = [kind.each(stored) for kind, stored, _ in columns.values()]
            dicts = [dict(zip(keys, row, strict=True)) for row in zip(*each, strict=True)]
        else:
            dicts = [self.build(position, env) for position, env in enumerate(envs.tolist())]
        if key is not None:
            for info, value in zip(dicts, values, strict=True):
                info[key] = value
        return dicts

    def _values_by_kind(
        self, key: str, envs: NDArray[np.intp]
    ) -> list[tuple[Kind, NDArray[np.intp], NDArray[Any]]]:
        """Return a key's values of each kind, as tuples (kind, positions, values)."""
        parts = []
        arrays, layouts = self.arrays, self.layouts
        alike = self._same_layouts()
        for group, layout in enumerate(layouts[:1] if alike else layouts):
            if key not in layout.keys[: len(arrays.kinds)]:
                continue
            slot = layout.keys.index(key)
            codes = arrays.kinds[slot]
            if not alike:
                codes = np.where(self.group_of[envs] == group, codes, 0)
            for code in set(codes.tolist()) - {0}:
                kind = layout.kind(code)
                (at,) = (codes == code).nonzero()
                parts.append((kind, at, kind.stored(arrays, slot, layout.starts[slot])[at]))
        return parts


def _thawed(frozen: Frozen) -> dict[Any, Any]:
    thaw, inner = frozen
    rest: dict[Any, Any] = thaw(inner)
    return rest


def _thaw_with(key: str, value: Callable[[], Any], frozen: Frozen | None) -> dict[Any, Any]:
    rest = {} if frozen is None else dict(_thawed(frozen))
    order = rest.get(KeyOrder)
    if order is not None and key not in order:
        rest[KeyOrder] = (*order, key)
    return {**rest, key: value()}


# Infos of all groups: arrays, a layout per group, and the group of each environment.
_Source = tuple[InfoArrays, tuple[ColumnLayout, ...], NDArray[np.intp]]

# With only columns of numbers: (bytes of the cells and kinds, their source, rest). With columns of
# arrays, or without any columns: ((), copied batch, rest).
Snapshot = tuple[tuple[bytes, ...], _Source | InfoBatch, Mapping[int, Frozen]]


def as_batch(snapshot: Snapshot) -> InfoBatch:
    numbers, source, rest = snapshot
    if isinstance(source, InfoBatch):
        return source
    arrays, layouts, group_of = source
    return InfoBatch(arrays.with_numbers(*numbers), layouts, group_of, rest)


class InfoColumns:
    """Info arrays of all groups, with each group's column layout."""

    def __init__(self, arrays: InfoArrays, group_of: NDArray[np.intp]) -> None:
        self._arrays = arrays
        self._group_of = group_of
        self._use((NO_COLUMNS,) * (int(group_of[-1]) + 1))

    def set_layout(self, group: int, layout: ColumnLayout | None) -> None:
        """Set a group's layout; None keeps the current one."""
        if layout is not None:
            # Equal layouts share one object, which readers compare by identity.
            layout = next((known for known in self.layouts if known == layout), layout)
            self._use((*self.layouts[:group], layout, *self.layouts[group + 1 :]))

    def _use(self, layouts: tuple[ColumnLayout, ...]) -> None:
        used = self._arrays.first(
            max([len(layout.keys) for layout in layouts]),
            max([layout.nbytes for layout in layouts]),
        )
        empty: InfoBatch | None = None
        if not used.kinds.size:  # infos without columns never change, so all steps share them
            empty = InfoBatch(used, layouts, self._group_of, NO_RESTS)
        # No call in between, so that an interrupt finds either all of these updated or none.
        self.layouts, self._source, self._empty = layouts, (used, layouts, self._group_of), empty

    def batch(
        self, rests: Mapping[int, Frozen] = NO_RESTS, envs: NDArray[np.intp] | None = None
    ) -> InfoBatch:
        """Copy the infos of some or all environments."""
        if self._empty is not None and not rests:
            return self._empty
        used, layouts, group_of = self._source
        arrays = used.copy() if envs is None else used.take(envs)
        return InfoBatch(arrays, layouts, group_of, rests)

    def snapshot(self, rests: Mapping[int, Frozen] = NO_RESTS) -> Snapshot:
        """Copy the infos of all environments."""
        source = self._source
        used = source[0]
        if self._empty is not None or used.bytes.size:
            return (), self.batch(rests), rests
        return (used.cells.tobytes(), used.kinds.tobytes()), source, rests
