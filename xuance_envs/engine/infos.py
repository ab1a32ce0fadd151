"""Infos without dicts: their numbers in arrays, and a sequence that builds a dict when asked.

Of an info dict, numbers under string keys go into columns, one cell per environment, together
with their exact type. Whatever does not fit a column is the *rest*, which travels by itself,
for that step only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.space_layout import BadValueError

__all__ = [
    "MAX_COLUMNS",
    "Columns",
    "Ends",
    "Frozen",
    "InfoArrays",
    "InfoBatch",
    "InfoColumns",
    "InfoWriter",
    "StepInfos",
    "kind_of",
]

MAX_COLUMNS = 64
"""Columns the arrays have room for; further keys travel as part of the rest."""

MAX_REORDERINGS = 8
"""How often columns are put into another order; infos that differ from then on state theirs."""


class KeyOrder:
    """The key under which a rest has the order of an info's keys, where columns do not imply it."""


def _exactly_none(_: Any) -> None:
    return None


# A cell's kind is its place in this table, from 1; 0 marks an absent one. A float64 holds every
# value of the types marked "d", an int64 of those marked "q".
_KINDS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (int, "q", int),
    (float, "d", float),
    (bool, "q", bool),
    (type(None), "", _exactly_none),
    (np.bool_, "d", np.bool_),
    (np.float64, "d", np.float64),
    (np.float32, "d", np.float32),
    (np.float16, "d", np.float16),
    *((kind, "q", kind) for kind in (np.int64, np.int32, np.int16, np.int8)),
    *((kind, "q", kind) for kind in (np.uint64, np.uint32, np.uint16, np.uint8)),
)
_CODES = {kind: code for code, (kind, _, _) in enumerate(_KINDS, start=1)}
_STORAGE = {code: storage for code, (_, storage, _) in enumerate(_KINDS, start=1)}
_RESTORE = {code: restore for code, (_, _, restore) in enumerate(_KINDS, start=1)}


def kind_of(kind: type) -> tuple[int, bool] | None:
    """The code of a type of numbers, and whether they are kept as integers; None if it has none."""
    code = _CODES.get(kind)
    return None if code is None else (code, _STORAGE[code] == "q")


class InfoArrays:
    """The numbers of one step's infos.

    Args:
        cells: ``(MAX_COLUMNS, n)`` float64: the values, integers as the same bits of an int64.
        kinds: ``(MAX_COLUMNS, n)`` uint8: the type of each cell's value, 0 where there is none.
    """

    def __init__(self, cells: NDArray[np.float64], kinds: NDArray[np.uint8]) -> None:
        self.cells = cells
        self.kinds = kinds

    @staticmethod
    def shapes(num_envs: int) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of the two arrays."""
        yield np.dtype(np.float64), (MAX_COLUMNS, num_envs)
        yield np.dtype(np.uint8), (MAX_COLUMNS, num_envs)

    def slice(self, lo: int, hi: int) -> InfoArrays:
        """The same arrays for environments ``lo`` to ``hi - 1`` only."""
        return InfoArrays(self.cells[:, lo:hi], self.kinds[:, lo:hi])

    def first(self, columns: int) -> InfoArrays:
        """The first columns of the same arrays."""
        return InfoArrays(self.cells[:columns], self.kinds[:columns])

    def copy(self) -> InfoArrays:
        """The same numbers in arrays of their own."""
        return InfoArrays(self.cells.copy(), self.kinds.copy())

    def take(self, envs: NDArray[np.intp]) -> InfoArrays:
        """A copy of some environments' numbers."""
        return InfoArrays(self.cells.take(envs, axis=1), self.kinds.take(envs, axis=1))


Columns = Mapping[str, tuple[type, NDArray[Any], NDArray[np.bool_]]]
"""By key, the type of some infos' values, the values, and where there are any."""

_Layout = tuple[tuple[Any, ...], Sequence[tuple[str, type, Any]]]
"""The keys of an info, in its order, and each one's type and column."""

_EMPTY: _Layout = ((), ())
_WRITE_ANEW: _Layout = ((KeyOrder,), ())  # no info is laid out like it


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
        keys, layout = self._layouts[i]
        try:
            if keys and tuple(info) == keys:
                for key, kind, column in layout:
                    value = info[key]
                    if type(value) is not kind:
                        break
                    column[i] = value
                else:
                    return
        except (LookupError, TypeError, ValueError):
            pass  # not laid out as this environment's last info was
        if keys or type(info) is not dict or info:
            self._write_anew(i, info)

    def _write_anew(self, i: int, info: dict[str, Any]) -> None:
        if not isinstance(info, dict):
            raise BadValueError(f"expected an info that is a dict, got a {type(info).__name__}")
        self._implied[i] = ()
        self._learn([key for key, value in info.items() if type(value) in _CODES])
        layout: list[tuple[str, type, Any]] = []
        rest: dict[Any, Any] = {}
        last, in_order = -1, True
        self._kinds[:, i] = 0
        for key, value in info.items():
            code = _CODES.get(type(value), 0)
            slot = self._slots.get(key) if code else None
            if slot is None:
                rest[key] = value
                continue
            column = self._columns[_STORAGE[code]][slot]
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
        self._layouts[i] = _WRITE_ANEW if rest else (tuple(info), layout)
        if rest:
            self.rest[i] = self._freeze(rest)

    def write_columns(self, places: Sequence[int], columns: Columns) -> None:
        """Stores the infos of some environments, which are numbers of one type by key.

        Args:
            places: the environments.
            columns: as :meth:`InfoBatch.columns` gives them, in that order.
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
                    (value,) = _scalars(kind, values[position : position + 1])
                    rests.setdefault(places[position], {})[key] = value
                continue
            cells = _as_stored(self._arrays.cells, _CODES[kind])
            cells[slot, at] = values
            self._kinds[slot, at] = mask * np.uint8(_CODES[kind])
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


Frozen = tuple[Callable[[Any], Any], Any]
"""How to thaw what does not fit the columns of an info, and that, frozen."""


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
                cell = _as_stored(self.numbers.cells, code)[slot, position]
                info[key] = _RESTORE[code](cell)
        if env in self.rest:
            thaw, frozen = self.rest[env]
            info.update(thaw(frozen))
            order = info.pop(KeyOrder, None)
            if order is not None:
                info = {key: info[key] for key in order if key in info}
        return info

    def column(self, key: str, envs: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One key of all infos; ``envs`` are the environments at the batch's positions."""
        cells, kinds = self._gather(key, envs)
        mask = kinds != 0
        codes = np.unique(kinds[mask]).tolist()
        others = self._others(key, envs)
        if others or _CODES[type(None)] in codes:
            objects = np.full(len(envs), None, dtype=object)
            for position in np.flatnonzero(mask).tolist():
                objects[position] = self.build(position, int(envs[position]))[key]
            for position, value in others.items():
                objects[position] = value
                mask[position] = True
            return objects, mask
        if len(codes) == 1:
            kind = _KINDS[codes[0] - 1][0]
            return _as_stored(cells, codes[0]).astype(kind), mask
        values = np.zeros(len(envs))
        for code in codes:
            mine = kinds == code
            values[mine] = _as_stored(cells, code)[mine]
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
            kind = _KINDS[code - 1][0]
            if kind is type(None):
                return None
            found[key] = kind, _as_stored(cells, code).astype(kind), mask
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
            *[_scalars(*column[:2]) for column in columns.values()], *extra.values(), strict=True
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


def _as_stored(cells: NDArray[np.float64], code: int) -> NDArray[Any]:
    """The cells as what values of this kind are stored as."""
    return cells.view(np.int64) if _STORAGE[code] == "q" else cells


def _scalars(kind: type, array: NDArray[Any]) -> list[Any]:
    """The values of an array, as scalars of a type."""
    return array.tolist() if kind in (int, float, bool) else list(array)


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


class Ends:
    """The episodes that ended in a step: what their environments' infos have besides.

    Args:
        ended: ``(num_envs,)`` bool: where an episode ended.
        observation: by place in the batch, the first observation of the next episode.
        infos: the batch of the resets' infos.
        envs: the environments in the batch, ascending; None for all.
    """

    __slots__ = ("_ended", "_envs", "_infos", "_observation")

    def __init__(
        self,
        ended: NDArray[np.bool_],
        observation: Callable[[int], Any],
        infos: InfoBatch,
        envs: NDArray[np.intp] | None,
    ) -> None:
        self._ended = ended
        self._observation = observation
        self._infos = infos
        self._envs = envs

    def taken(self) -> tuple[NDArray[np.intp], InfoBatch]:
        """The environments whose episode ended, and the batch of their resets' infos."""
        (envs,) = self._ended.nonzero()
        if self._envs is not None and len(self._envs) == len(envs):
            return envs, self._infos
        batch = self._infos
        numbers = (
            batch.numbers.take(self._rows(envs)) if len(batch.numbers.kinds) else batch.numbers
        )
        return envs, InfoBatch(numbers, batch.keys, batch.group_of, batch.rest)

    def observations(self, envs: NDArray[np.intp]) -> list[Any]:
        """The first observations of the next episodes of some of those environments."""
        return [self._observation(row) for row in self._rows(envs).tolist()]

    def _rows(self, envs: NDArray[np.intp]) -> NDArray[np.intp]:
        return envs if self._envs is None else self._envs.searchsorted(envs)

    def add_to(self, info: dict[Any, Any], env: int) -> None:
        """Adds to the info of an environment what it has besides, if its episode ended."""
        if self._ended[env]:
            row = env if self._envs is None else int(self._envs.searchsorted(env))
            info["reset_obs"] = self._observation(row)
            info["reset_info"] = self._infos.build(row, env)


class StepInfos(Sequence[dict[Any, Any]]):
    """The infos of one step: a sequence of dicts, each built when it is first looked at.

    Looked at again, a dict is the same object. Looked at after later steps, it still shows its
    own step. ``infos[i] = {...}`` replaces one.

    Args:
        batch: what the dicts are built from.
        envs: the environment of each dict.
        ends: the episodes that ended in the step, None if none did.
    """

    __slots__ = ("_batch", "_built", "_ends", "_envs")

    def __init__(self, batch: InfoBatch, envs: NDArray[np.intp], ends: Ends | None = None) -> None:
        self._batch = batch
        self._envs = envs
        self._ends = ends
        self._built: dict[int, dict[Any, Any]] = {}

    @property
    def parts(self) -> tuple[InfoBatch, Ends | None]:
        """What the dicts are built from."""
        return self._batch, self._ends

    def column(self, key: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One key of every environment's info, without building any dict.

        Args:
            key: a key of the infos the environments gave; not ``reset_obs`` or ``reset_info``.

        Returns:
            ``(values, mask)``, both of shape ``(len(infos),)``. ``mask`` says which infos have
            the key; where they do not, the value is 0, or None in an array of objects. The
            dtype is that of the values, float64 if several kinds of numbers are among them,
            and object if some are not numbers.
        """
        return self._batch.column(key, self._envs)

    def __len__(self) -> int:
        return len(self._envs)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> dict[Any, Any]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[dict[Any, Any]]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> dict[Any, Any] | list[dict[Any, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        position = self._position(index)
        info = self._built.get(position)
        if info is None:
            info = self._built[position] = self._build(position)
        return info

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        """All dicts: those not looked at before are built together, which is quicker."""
        if len(self._built) < len(self):
            for position, info in enumerate(self._batch.dicts(self._envs, {})):
                if position not in self._built:
                    if self._ends is not None:
                        self._ends.add_to(info, int(self._envs[position]))
                    self._built[position] = info
        return iter([self._built[position] for position in range(len(self))])

    def __setitem__(self, index: SupportsIndex, info: dict[Any, Any], /) -> None:
        self._built[self._position(index)] = info

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StepInfos | list | tuple):
            return list(self) == list(other)
        return NotImplemented

    def __add__(self, other: object) -> list[Any]:
        if isinstance(other, StepInfos | list):
            return [*self, *other]
        return NotImplemented

    def __radd__(self, other: object) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable, as a list

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[dict[Any, Any]]]]:
        return list, (list(self),)

    def copy(self) -> list[dict[Any, Any]]:
        """A list of the same dicts."""
        return list(self)

    def _position(self, index: SupportsIndex) -> int:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"info {position} of {len(self)}")
        return position % len(self)

    def _build(self, position: int) -> dict[Any, Any]:
        env = int(self._envs[position])
        info = self._batch.build(position, env)
        if self._ends is not None:
            self._ends.add_to(info, env)
        return info
