"""Arrays with one value of a space per environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.buffer_pool import MIN_POOLED_BYTES, make_copiers
from xuance_envs.engine.data.space_layout import BadValueError, Leaf, SpaceLayout, describe, fit
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import counted

Index = NDArray[np.intp] | slice  # indices of environments, or ALL_ENVS

ALL_ENVS = slice(None)

# Formats whose assignment a memoryview checks and copies in C.
_MEMORYVIEW_FORMATS = frozenset("?bBhHiIlLqQfd")
_INTEGER_FORMATS = frozenset("bBhHiIlLqQ")


def identity(value: Any) -> Any:
    return value


class Row(Protocol):
    """Storage for one value, written by ``row[:] = value``; the fastest rows are memoryviews."""

    def __setitem__(self, key: slice, value: Any, /) -> None: ...


@dataclass(slots=True, eq=False)
class _ArrayRow:
    """Row of an array; writing a value converts it, and raises an error if it does not fit."""

    _array: NDArray[Any]
    _leaf: Leaf

    def __setitem__(self, key: slice, value: Any) -> None:
        array = self._array
        if type(value) is not np.ndarray or value.dtype != array.dtype:
            if (
                hasattr(value, "copy_to")
                and value.shape == array.shape
                and value.dtype == array.dtype
            ):
                value.copy_to(array)
                return
            value = _fit(value, self._leaf)
        elif value.shape != array.shape:
            value = _fit(value, self._leaf)
        array[...] = value


@dataclass(slots=True, eq=False)
class _IntegerRow:
    """Row with one integer; converts other values that fit, and rejects those that do not."""

    _view: memoryview
    _index: int
    _leaf: Leaf

    def __setitem__(self, key: slice, value: Any) -> None:
        try:
            self._view[self._index] = value
        except (TypeError, ValueError):
            self._view[self._index] = _fit(value, self._leaf).item()


@dataclass(slots=True, eq=False)
class _ObjectRow:
    """Row of a list of objects; stores a copy of the value, or its pickle."""

    _values: list[Any]
    _index: int
    _freeze: Callable[[Any], Any]

    def __setitem__(self, key: slice, value: Any) -> None:
        self._values[self._index] = self._freeze(value)


@dataclass(slots=True, eq=False)
class _TreeRow:
    _layout: SpaceLayout
    _rows: Sequence[Row]

    def __setitem__(self, key: slice, value: Any) -> None:
        for row, part in zip(self._rows, self._layout.flatten(value), strict=True):
            row[:] = part


def _fit(value: Any, leaf: Leaf, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Call :func:`fit` for a leaf, and add the leaf's path to errors."""
    assert leaf.dtype is not None
    try:
        return fit(value, leaf.dtype, leaf.shape if shape is None else shape)
    except BadValueError as error:
        raise BadValueError(f"{leaf.path}: {error}" if leaf.path else str(error)) from None


class SpaceRows:
    """One value of a space per environment: arrays for leaves of fixed shape, lists for others."""

    def __init__(self, layout: SpaceLayout, parts: list[Any], n: int) -> None:
        self.layout = layout
        self.parts = parts
        self.objects = [part for part in parts if isinstance(part, list)]
        self._copiers = [None if isinstance(part, list) else make_copiers(part) for part in parts]
        copiers = self._copiers[0] if layout.flat else None
        self.copy_flat = None if copiers is None else copiers[0]
        self.take_flat = None if copiers is None else copiers[1]
        self._n = n

    @classmethod
    def allocate(cls, layout: SpaceLayout, n: int) -> SpaceRows:
        parts: list[Any] = [
            [None] * n if leaf.dtype is None else np.zeros((n, *leaf.shape), leaf.dtype)
            for leaf in layout.leaves
        ]
        return cls(layout, parts, n)

    def __len__(self) -> int:
        return self._n

    @property
    def arrays(self) -> list[NDArray[Any]]:
        return [part for part in self.parts if not isinstance(part, list)]

    def slice(self, lo: int, hi: int) -> SpaceRows:
        """Return views for environments ``lo`` to ``hi - 1``; lists of objects are copied."""
        return SpaceRows(self.layout, [part[lo:hi] for part in self.parts], hi - lo)

    # -- used by groups ---------------------------------------------------------------

    def rows(self, n: int, freeze: Callable[[Any], Any]) -> list[Row]:
        return [self.row(i, freeze) for i in range(n)]

    def row(self, i: int, freeze: Callable[[Any], Any] = identity, *, strict: bool = True) -> Row:
        """Return row i; with ``strict``, it is faster, but may reject values of other dtypes."""
        parts = zip(self.parts, self.layout.leaves, strict=True)
        rows = [self._leaf_row(part, i, leaf, freeze, strict) for part, leaf in parts]
        return rows[0] if self.layout.flat else _TreeRow(self.layout, rows)

    def _leaf_row(
        self, part: Any, i: int, leaf: Leaf, freeze: Callable[[Any], Any], strict: bool
    ) -> Row:
        if leaf.dtype is None:
            return _ObjectRow(part, i, freeze)
        if leaf.shape == () and leaf.dtype.char in _INTEGER_FORMATS and leaf.dtype.isnative:
            return _IntegerRow(memoryview(part), i, leaf)
        is_fast = strict and self.layout.flat and len(leaf.shape) == 1
        row = checked_memoryview(part[i]) if is_fast else None
        return _ArrayRow(part[i, ...], leaf) if row is None else row

    def reader(self) -> Callable[[], Iterable[Any]]:
        """Return a function that reads all values, each in the form of ``space.sample()``."""
        parts = zip(self.parts, self.layout.leaves, strict=True)
        readers = [_leaf_reader(part, leaf) for part, leaf in parts]
        if self.layout.flat:
            return readers[0]

        def read() -> list[Any]:
            columns = [list(reader()) for reader in readers]
            return [self.layout.unflatten([c[i] for c in columns]) for i in range(len(self))]

        return read

    # -- used by the main process -----------------------------------------------------

    def put(self, batch: Any, at: Index, count: int) -> None:
        """Store a batch in any form that users may pass; if a value does not fit, store nothing."""
        leaves = self.layout.leaves
        parts: list[Any]
        if isinstance(batch, list) and not self.layout.flat:
            if len(batch) != count:
                raise BadValueError(
                    f"expected a list of {counted(count, 'value')}, got {len(batch)}"
                )
            values = [self.layout.flatten(value) for value in batch]
            parts = [list(part) for part in zip(*values, strict=True)]
        else:
            parts = self.layout.flatten(batch)
        fitted = [_fit_batch(part, leaf, count) for part, leaf in zip(parts, leaves, strict=True)]
        self._store(at, fitted)

    def _store(self, at: Index, parts: Iterable[Any]) -> None:
        for mine, part in zip(self.parts, parts, strict=True):
            if isinstance(mine, list):
                indices = range(len(mine))[at] if isinstance(at, slice) else at.tolist()
                for i, value in zip(indices, part, strict=True):
                    mine[i] = value
            else:
                mine[at] = part

    def take(self, at: NDArray[np.intp]) -> SpaceRows:
        return SpaceRows(self.layout, self._copies(at, list), len(at))

    def value(self, i: int) -> Any:
        """Return one environment's value, sharing memory with these rows."""
        return self.layout.unflatten([part[i] for part in self.parts])

    def _copies(self, at: Index, sequence: Callable[[list[Any]], Any]) -> list[Any]:
        """Copy some environments' values of every leaf; object leaves become a ``sequence``."""
        parts = zip(self.parts, self._copiers, strict=True)
        if isinstance(at, slice):
            return [sequence(part) if copiers is None else copiers[0]() for part, copiers in parts]
        return [
            sequence([part[i] for i in at.tolist()]) if copiers is None else copiers[1](at)
            for part, copiers in parts
        ]

    def load(self, lo: int, objects: Sequence[Sequence[Any]]) -> None:
        for mine, given in zip(self.objects, objects, strict=True):
            mine[lo : lo + len(given)] = given

    def copy(self, at: Index = ALL_ENVS) -> Any:
        """Copy the values of some environments into one batch."""
        if at is ALL_ENVS and self.copy_flat is not None:
            return self.copy_flat()
        return self.layout.unflatten(self._copies(at, tuple))

    def copy_writable(self) -> Any:
        """Copy all values into one batch; objects are copied, too, and returned in lists."""
        return self.layout.unflatten(self._copies(ALL_ENVS, lambda part: list(map(copy_of, part))))

    def view(self) -> Any:
        """Return all values as one batch of read-only views; objects are returned in a tuple."""
        return self.layout.unflatten(
            [tuple(part) if isinstance(part, list) else read_only(part) for part in self.parts]
        )

    def assign(self, at: NDArray[np.intp], other: SpaceRows) -> None:
        self._store(at, other._copies(at, list))

    def as_batch(self) -> Any:
        """Return all values as one batch without copying; objects are returned in a tuple."""
        parts = [tuple(part) if isinstance(part, list) else part for part in self.parts]
        return self.layout.unflatten(parts)

    @property
    def flat(self) -> NDArray[Any] | None:
        """The array of a space that consists of one array leaf; None for any other space."""
        part = self.parts[0] if self.layout.flat else None
        return None if isinstance(part, list) else part

    @property
    def is_large(self) -> bool:
        """True if all parts are arrays and together large enough for a buffer pool."""
        return not self.objects and sum(part.nbytes for part in self.parts) >= MIN_POOLED_BYTES


def with_rows(
    layout: SpaceLayout, batch: Any, rows: Iterable[int], values: Iterable[Sequence[Any]]
) -> Any:
    """Return a copy of a batch with some rows replaced; each new value is given as its leaves."""
    old = layout.flatten(batch)
    parts = [list(part) if isinstance(part, list | tuple) else part.copy() for part in old]
    for row, leaves in zip(rows, values, strict=True):
        for part, leaf in zip(parts, leaves, strict=True):
            part[row] = copy_of(leaf) if isinstance(part, list) else leaf
    return layout.unflatten(parts)


def _leaf_reader(part: Any, leaf: Leaf) -> Callable[[], Iterable[Any]]:
    if leaf.dtype is None or isinstance(leaf.space, spaces.Discrete):
        return partial(iter, part)
    if leaf.shape:
        return lambda: iter(part.copy())

    def read() -> list[Any]:  # iterating would turn 0-d arrays into scalars
        own = part.copy()
        return [own[i, ...] for i in range(len(own))]

    return read


def _fit_batch(part: Any, leaf: Leaf, count: int) -> Any:
    """Convert a batch of ``count`` values of a leaf, or a single value if ``count`` is 1."""
    prefix = f"{leaf.path}: " if leaf.path else ""
    is_subclass = isinstance(part, np.ndarray) and type(part) is not np.ndarray
    if is_subclass and np.ma.is_masked(part):  # `np.ma` is imported when it is first used
        raise BadValueError(f"{prefix}expected no masked values, got {part.mask.sum()}")
    if leaf.dtype is not None:
        if count == 1 and _has_shape(part, leaf.shape):
            part = np.asarray(part)[np.newaxis]
        return _fit(part, leaf, (count, *leaf.shape))
    is_batch = isinstance(part, list | tuple | np.ndarray) and len(part) == count
    # Some spaces, such as a space of any objects, contain both a value and a list with this value.
    contains, may_be_one = leaf.space.contains, count == 1 and not isinstance(part, list)
    if may_be_one and not (is_batch and contains(part[0])) and contains(part):
        return [part]
    if not is_batch:
        raise BadValueError(
            f"{prefix}expected a list of {counted(count, 'value')}, got {describe(part)}"
        )
    return list(part)


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    try:
        return bool(np.shape(value) == shape)
    except ValueError:  # ragged
        return False


def checked_memoryview(vector: NDArray[Any]) -> memoryview | None:
    """Return a memoryview, which checks dtype and length; None if it does not support the dtype."""
    dtype = vector.dtype
    if dtype.char not in _MEMORYVIEW_FORMATS or not dtype.isnative:
        return None
    return memoryview(vector)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
