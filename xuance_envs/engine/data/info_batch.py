"""The infos of one step, taken out of the arrays for good: dicts are built when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import (
    CODES,
    RESTORE,
    Frozen,
    InfoArrays,
    KeyOrder,
    as_stored,
    scalars,
    type_of,
)

__all__ = ["InfoBatch", "InfoColumns"]


class InfoBatch:
    """Everything the infos of some environments are built from, taken out of the arrays for good.

    Args:
        numbers: a copy of the numbers, one column of the arrays per environment of the batch.
        keys: by group, the key of each column.
        group_of: by environment of the vector environment, its group.
        rest: by environment of the vector environment, how to thaw its rest, and the frozen rest.
    """

    __slots__ = ("group_of", "keys", "numbers", "rest")

    def __init__(
        self,
        numbers: InfoArrays,
        keys: Sequence[Sequence[str]],
        group_of: NDArray[np.intp],
        rest: Mapping[int, Frozen],
    ) -> None:
        self.numbers = numbers
        self.keys = keys
        self.group_of = group_of
        self.rest = rest

    def build(self, position: int, env: int) -> dict[Any, Any]:
        """The info dict of environment ``env``, which is at ``position`` in this batch."""
        info: dict[Any, Any] = {}
        kinds = self.numbers.kinds[:, position].tolist() if len(self.numbers.kinds) else []
        for slot, (key, code) in enumerate(zip(self.keys[self.group_of[env]], kinds, strict=False)):
            if code:
                cell = as_stored(self.numbers.cells, code)[slot, position]
                info[key] = RESTORE[code](cell)
        if env in self.rest:
            thaw, frozen = self.rest[env]
            info.update(thaw(frozen))
            order = info.pop(KeyOrder, None)
            if order is not None:
                info = {key: info[key] for key in order if key in info}
        return info

    def with_values(self, key: str, values: Mapping[int, Callable[[], Any]]) -> InfoBatch:
        """The same infos, some of them with one key more, whatever they had under it.

        Args:
            key: the key.
            values: by environment, what makes the value when its info is looked at.
        """
        rest = dict(self.rest)
        for env, value in values.items():
            rest[env] = partial(_thawed_with, key, value), rest.get(env)
        return InfoBatch(self.numbers, self.keys, self.group_of, rest)

    def column(self, key: str, envs: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One key of all infos; ``envs`` are the environments at the batch's positions."""
        cells, kinds = self._gather(key, envs)
        mask = kinds != 0
        codes = np.unique(kinds[mask]).tolist()
        others = self._others(key, envs)
        if others or CODES[type(None)] in codes:
            objects = np.full(len(envs), None, dtype=object)
            for position in np.flatnonzero(mask).tolist():
                objects[position] = self.build(position, int(envs[position]))[key]
            for position, value in others.items():
                objects[position] = value
                mask[position] = True
            return objects, mask
        if len(codes) == 1:
            kind = type_of(codes[0])
            return as_stored(cells, codes[0]).astype(kind), mask
        values = np.zeros(len(envs))
        for code in codes:
            mine = kinds == code
            values[mine] = as_stored(cells, code)[mine]
        return values, mask

    def columns(
        self, envs: NDArray[np.intp]
    ) -> dict[str, tuple[type, NDArray[Any], NDArray[np.bool_]]] | None:
        """Every key of all infos: its values' type, the values, and where there are any.

        Args:
            envs: the environments at the batch's positions.

        Returns:
            None if values are not numbers, or not all of one type: then it takes the dicts.
        """
        if self.rest:
            return None
        found: dict[str, tuple[type, NDArray[Any], NDArray[np.bool_]]] = {}
        alike = self._groups_are_alike()
        for slot, key in enumerate(self.keys[0] if alike else self._all_keys()):
            if not alike:
                cells, kinds = self._gather(key, envs)
            elif slot < len(self.numbers.kinds):
                cells, kinds = self.numbers.cells[slot], self.numbers.kinds[slot]
            else:
                continue
            code = int(kinds.max(initial=0))
            if code == 0:
                continue
            mask = kinds == code
            if not mask.all():
                if (kinds[~mask] != 0).any():
                    return None
                cells = np.where(mask, cells, 0.0)
            kind = type_of(code)
            if kind is type(None):
                return None
            found[key] = kind, as_stored(cells, code).astype(kind), mask
        return found

    def _groups_are_alike(self) -> bool:
        return all([keys == self.keys[0] for keys in self.keys])

    def _all_keys(self) -> dict[str, None]:
        return dict.fromkeys(key for keys in self.keys for key in keys)

    def dicts(
        self, envs: NDArray[np.intp], extra: Mapping[str, Sequence[Any]]
    ) -> list[dict[Any, Any]]:
        """The info dicts of all environments of the batch.

        Args:
            envs: the environments at the batch's positions.
            extra: what they are to have besides, by key one value for each.
        """
        columns = self.columns(envs) if self._groups_are_alike() else None
        if columns is None or not all([mask.all() for _, _, mask in columns.values()]):
            dicts = [self.build(position, env) for position, env in enumerate(envs.tolist())]
            for key, values in extra.items():
                for info, value in zip(dicts, values, strict=True):
                    info[key] = value
            return dicts
        keys = (*columns, *extra)
        if len(keys) == 1 and extra:
            (key,) = keys
            return [{key: value} for value in extra[key]]
        if not keys:
            return [{} for _ in range(len(envs))]
        rows = zip(
            *[scalars(*column[:2]) for column in columns.values()], *extra.values(), strict=True
        )
        return [dict(zip(keys, row, strict=True)) for row in rows]

    def _gather(
        self, key: str, envs: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
        """The cells and kinds of one key, whichever column each group keeps it in."""
        cells = np.zeros(len(envs))
        kinds = np.zeros(len(envs), np.uint8)
        for group, keys in enumerate(self.keys):
            if key in keys[: len(self.numbers.kinds)]:
                slot = keys.index(key)
                present = (self.group_of[envs] == group) & (self.numbers.kinds[slot] != 0)
                cells[present] = self.numbers.cells[slot, present]
                kinds[present] = self.numbers.kinds[slot, present]
        return cells, kinds

    def _others(self, key: str, envs: NDArray[np.intp]) -> dict[int, Any]:
        """By position, the values of a key that did not fit its column."""
        others = {}
        for position, env in enumerate(envs.tolist() if self.rest else ()):
            if env in self.rest:
                thaw, frozen = self.rest[env]
                rest = thaw(frozen)
                if key in rest:
                    others[position] = rest[key]
        return others


def _thawed_with(key: str, value: Callable[[], Any], frozen: Frozen | None) -> dict[Any, Any]:
    """A rest with one key more."""
    rest: dict[Any, Any] = {}
    if frozen is not None:
        thaw, inner = frozen
        rest = dict(thaw(inner))
    order = rest.get(KeyOrder)
    if order is not None and key not in order:
        rest[KeyOrder] = (*order, key)
    return {**rest, key: value()}


class InfoColumns:
    """The columns of infos that are in use, and whose they are.

    Args:
        arrays: all columns there are.
        groups: number of groups.
    """

    def __init__(self, arrays: InfoArrays, groups: int) -> None:
        self._arrays = arrays
        self._keys: tuple[tuple[str, ...], ...] = ((),) * groups
        self._used = arrays.first(0)
        self._unused = self._used.copy()

    def set_keys(self, group: int, keys: tuple[str, ...] | None) -> None:
        """Takes note of the keys of a group's columns, if there are new ones."""
        if keys is not None:
            self._keys = (*self._keys[:group], keys, *self._keys[group + 1 :])
            self._used = self._arrays.first(max(map(len, self._keys)))

    def batch(
        self,
        group_of: NDArray[np.intp],
        rests: Mapping[int, Frozen],
        envs: NDArray[np.intp] | None = None,
    ) -> InfoBatch:
        """What the infos of some environments, or all, are built from."""
        used = self._used
        if not len(used.kinds):
            numbers = self._unused
        elif envs is None:
            numbers = used.copy()
        else:
            numbers = used.take(envs)
        return InfoBatch(numbers, self._keys, group_of, rests)
