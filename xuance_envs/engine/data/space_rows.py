"""One value of a space per environment, in arrays: written by environments, read by the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.buffer_pool import MIN_POOLED_BYTES, make_copiers
from xuance_envs.engine.data.space_layout import BadValueError, Leaf, SpaceLayout, fit
from xuance_envs.engine.serialization import copy_of

__all__ = ["ALL_ENVS", "Index", "Row", "SpaceRows", "checked_memoryview", "read_only"]

Index = NDArray[np.intp] | slice
"""Which environments: their indices, or :data:`ALL_ENVS`."""

ALL_ENVS = slice(None)
"""All environments."""

# The formats in which a memoryview can check and copy a row by itself.
_MEMORYVIEW_FORMATS = frozenset("?bBhHiIlLqQfd")
_INTEGER_FORMATS = frozenset("bBhHiIlLqQ")


class Row(Protocol):
    """The place of one environment's value: ``row[:] = value`` stores it.

    A :class:`memoryview` is one, and the fastest: it refuses a wrong dtype or shape by itself.
    """

    def __setitem__(self, key: slice, value: Any, /) -> None: ...


class _ArrayRow:
    """A row of an array that takes whatever fits it."""

    __slots__ = ("_array", "_leaf")

    def __init__(self, array: NDArray[Any], leaf: Leaf) -> None:
        self._array = array
        self._leaf = leaf

    def __setitem__(self, key: slice, value: Any) -> None:
        array = self._array
        if type(value) is not np.ndarray or value.dtype != array.dtype:
            if hasattr(value, "copy_to") and (value.shape, value.dtype) == (
                array.shape,
                array.dtype,
            ):
                value.copy_to(array)
                return
            value = _fit(value, self._leaf)
        elif value.shape != array.shape:
            value = _fit(value, self._leaf)
        array[...] = value


class _IntegerRow:
    """A row of an array with one integer per environment; refuses what is not one, or too big."""

    __slots__ = ("_index", "_leaf", "_view")

    def __init__(self, array: NDArray[Any], index: int, leaf: Leaf) -> None:
        self._view = memoryview(array)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        self._index = index
        self._leaf = leaf

    def __setitem__(self, key: slice, value: Any) -> None:
        try:
            self._view[self._index] = value
        except (TypeError, ValueError):
            self._view[self._index] = _fit(value, self._leaf).item()


class _ObjectRow:
    """A row of a list of objects, which takes a copy."""

    __slots__ = ("_freeze", "_index", "_values")

    def __init__(self, values: list[Any], index: int, freeze: Callable[[Any], Any]) -> None:
        self._values = values
        self._index = index
        self._freeze = freeze

    def __setitem__(self, key: slice, value: Any) -> None:
        self._values[self._index] = self._freeze(value)


class _TreeRow:
    """The rows of a space's leaves as one."""

    __slots__ = ("_layout", "_rows")

    def __init__(self, layout: SpaceLayout, rows: Sequence[Row]) -> None:
        self._layout = layout
        self._rows = rows

    def __setitem__(self, key: slice, value: Any) -> None:
        for row, part in zip(self._rows, self._layout.flatten(value), strict=True):
            row[:] = part


def _fit(value: Any, leaf: Leaf, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """:func:`fit` for a leaf, naming it in the error."""
    assert leaf.dtype is not None
    try:
        return fit(value, leaf.dtype, leaf.shape if shape is None else shape)
    except BadValueError as error:
        raise BadValueError(f"{leaf.path}: {error}" if leaf.path else str(error)) from None


class SpaceRows:
    """One value of a space per environment: an array for each leaf of fixed shape, else a list."""

    def __init__(self, layout: SpaceLayout, parts: list[Any], n: int) -> None:
        self.layout = layout
        self.parts = parts
        self.objects = [part for part in parts if isinstance(part, list)]
        self._copiers = [None if isinstance(part, list) else make_copiers(part) for part in parts]
        quick = self._copiers[0] if layout.flat else None
        self.copy_flat = None if quick is None else quick[0]
        self.take_flat = None if quick is None else quick[1]
        self._n = n

    @classmethod
    def allocate(cls, layout: SpaceLayout, n: int) -> SpaceRows:
        """Rows of so many environments, on memory of their own."""
        parts: list[Any] = [
            [None] * n if leaf.dtype is None else np.zeros((n, *leaf.shape), leaf.dtype)
            for leaf in layout.leaves
        ]
        return cls(layout, parts, n)

    def __len__(self) -> int:
        return self._n

    def slice(self, lo: int, hi: int) -> SpaceRows:
        """The rows of environments ``lo`` to ``hi - 1``: the same arrays, lists of its own."""
        return SpaceRows(self.layout, [part[lo:hi] for part in self.parts], hi - lo)

    # -- the side of the environments -------------------------------------------------

    def rows(self, n: int, freeze: Callable[[Any], Any]) -> list[Row]:
        """A place for each environment's value."""
        return [self.row(i, freeze) for i in range(n)]

    def row(self, i: int, freeze: Callable[[Any], Any], *, strict: bool = True) -> Row:
        """The place of environment i's value; not ``strict`` takes all that can be made to fit."""
        rows = [
            self._leaf_row(part, i, leaf, freeze, strict)
            for part, leaf in zip(self.parts, self.layout.leaves, strict=True)
        ]
        return rows[0] if self.layout.flat else _TreeRow(self.layout, rows)

    def _leaf_row(
        self, part: Any, i: int, leaf: Leaf, freeze: Callable[[Any], Any], strict: bool
    ) -> Row:
        if leaf.dtype is None:
            return _ObjectRow(part, i, freeze)
        if leaf.shape == () and leaf.dtype.char in _INTEGER_FORMATS and leaf.dtype.isnative:
            return _IntegerRow(part, i, leaf)
        if strict and self.layout.flat and len(leaf.shape) == 1:
            quick = checked_memoryview(part[i])
            if quick is not None:
                return quick
        return _ArrayRow(part[i, ...], leaf)

    def reader(self) -> Callable[[], list[Any]]:
        """A function that gives every environment's value, and shares no memory with the rows.

        The values have the form that ``space.sample()`` has.
        """
        readers = [
            _leaf_reader(part, leaf)
            for part, leaf in zip(self.parts, self.layout.leaves, strict=True)
        ]
        if self.layout.flat:
            return readers[0]

        def read() -> list[Any]:
            columns = [reader() for reader in readers]
            return [self.layout.unflatten([c[i] for c in columns]) for i in range(len(self))]

        return read

    # -- the side of the caller -------------------------------------------------------

    def put(self, batch: Any, at: Index, count: int) -> None:
        """Stores a batch of values: an array, a list of values, or a dict or tuple of batches.

        Nothing is stored unless all of it fits.
        """
        leaves = self.layout.leaves
        parts: list[Any]
        if isinstance(batch, list) and not self.layout.flat:
            if len(batch) != count:
                raise BadValueError(f"expected a list of {count}, got one of {len(batch)}")
            values = [self.layout.flatten(value) for value in batch]
            parts = [list(part) for part in zip(*values, strict=True)]
        else:
            parts = self.layout.flatten(batch)
        fitted = [_fit_batch(part, leaf, count) for part, leaf in zip(parts, leaves, strict=True)]
        for mine, part in zip(self.parts, fitted, strict=True):
            if isinstance(mine, list):
                indices = range(len(mine))[at] if isinstance(at, slice) else at.tolist()
                for i, value in zip(indices, part, strict=True):
                    mine[i] = value
            else:
                mine[at] = part

    def take(self, at: NDArray[np.intp]) -> SpaceRows:
        """A copy of some environments' rows."""
        return SpaceRows(self.layout, self._copies(at, list), len(at))

    def value(self, i: int) -> Any:
        """One environment's value, which shares memory with these rows."""
        return self.layout.unflatten([part[i] for part in self.parts])

    def _copies(self, at: Index, sequence: type) -> list[Any]:
        """A copy of every part, for some environments; lists become such a sequence."""
        parts = zip(self.parts, self._copiers, strict=True)
        if isinstance(at, slice):
            return [sequence(part) if copiers is None else copiers[0]() for part, copiers in parts]
        return [
            sequence([part[i] for i in at.tolist()]) if copiers is None else copiers[1](at)
            for part, copiers in parts
        ]

    def load(self, lo: int, objects: Sequence[Sequence[Any]]) -> None:
        """Stores the objects of the environments from ``lo`` on, one list per leaf."""
        for mine, given in zip(self.objects, objects, strict=True):
            mine[lo : lo + len(given)] = given

    def copy(self, at: Index = ALL_ENVS) -> Any:
        """The values of some environments as one batch that shares no memory with these."""
        return self.layout.unflatten(self._copies(at, tuple))

    def copy_writable(self) -> Any:
        """As :meth:`copy` of all, but with copies of objects, in lists."""
        return self.layout.unflatten(
            [
                list(map(copy_of, part)) if copiers is None else copiers[0]()
                for part, copiers in zip(self.parts, self._copiers, strict=True)
            ]
        )

    def copy_of_batch(self, batch: Any) -> Any:
        """A copy of a batch from :meth:`copy`, of arrays only."""
        return self.layout.unflatten([part.copy() for part in self.layout.flatten(batch)])

    def copy_updating(self, batch: Any, at: NDArray[np.intp]) -> Any:
        """A copy of a batch from :meth:`copy_writable`, with some values taken from here."""
        parts = []
        for part, old in zip(self.parts, self.layout.flatten(batch), strict=True):
            new = list(old) if isinstance(part, list) else old.copy()
            for i in at.tolist():
                new[i] = copy_of(part[i])
            parts.append(new)
        return self.layout.unflatten(parts)

    def view(self) -> Any:
        """All values as one batch of read-only views; objects as a tuple."""
        return self.layout.unflatten(
            [tuple(part) if isinstance(part, list) else read_only(part) for part in self.parts]
        )

    def assign(self, at: NDArray[np.intp], other: SpaceRows) -> None:
        """Takes over some environments' values from rows of the same space."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            if isinstance(mine, list):
                for i in at.tolist():
                    mine[i] = theirs[i]
            else:
                mine[at] = theirs[at]

    def as_batch(self) -> Any:
        """All values as one batch of these very arrays; objects as a tuple."""
        return self.layout.unflatten(
            [tuple(part) if isinstance(part, list) else part for part in self.parts]
        )

    @property
    def flat(self) -> NDArray[Any] | None:
        """The one array that is all there is, None for any other space."""
        part = self.parts[0] if self.layout.flat else None
        return None if isinstance(part, list) else part

    @property
    def is_large(self) -> bool:
        """Whether all there is is arrays, and copying them takes a while."""
        return not self.objects and sum(part.nbytes for part in self.parts) >= MIN_POOLED_BYTES


def _leaf_reader(part: Any, leaf: Leaf) -> Callable[[], list[Any]]:
    if leaf.dtype is None or isinstance(leaf.space, spaces.Discrete):
        return lambda: list(part)
    if leaf.shape:
        return lambda: list(part.copy())

    def read() -> list[Any]:  # arrays without axes, which iterating would make scalars of
        own = part.copy()
        return [own[i, ...] for i in range(len(own))]

    return read


def _fit_batch(part: Any, leaf: Leaf, count: int) -> Any:
    """A batch of ``count`` values of a leaf, or one bare value where one is wanted."""
    if leaf.dtype is not None:
        if count == 1 and _has_shape(part, leaf.shape):
            part = np.asarray(part)[np.newaxis]
        return _fit(part, leaf, (count, *leaf.shape))
    if count == 1 and not isinstance(part, list) and leaf.space.contains(part):
        return [part]
    if not isinstance(part, list | tuple | np.ndarray) or len(part) != count:
        got = f"{len(part)}" if isinstance(part, list | tuple | np.ndarray) else repr(part)
        raise BadValueError(f"{leaf.path}: expected a list of {count} values, got {got}")
    return list(part)


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    try:
        return bool(np.shape(value) == shape)
    except ValueError:  # ragged
        return False


def checked_memoryview(vector: NDArray[Any]) -> memoryview | None:
    """A view of a vector that refuses a wrong dtype or length by itself; None if it could not."""
    dtype = vector.dtype
    if dtype.char not in _MEMORYVIEW_FORMATS or not dtype.isnative:
        return None
    return memoryview(vector)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of the array that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
