"""Arrays, and copies of an array, in memory that earlier ones had and nobody holds any more.

Memory for a big array comes from the system page by page, and goes back to it when the array is
dropped. For batches of images that takes many times as long as the copying does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LEAST_BYTES", "copiers_of", "maker_of"]

LEAST_BYTES = 1 << 16
"""Memory for smaller arrays is kept by the allocator itself."""

_MOST_COPIES = 6
"""Two batches that the caller compares, two in the making, and as many of another's."""

_COUNTS_REFERENCES = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)
"""Whether a count of references tells that there is no other; without the GIL it does not."""


def copiers_of(
    array: NDArray[Any],
) -> tuple[Callable[[], NDArray[Any]], Callable[[NDArray[np.intp]], NDArray[Any]]]:
    """A function that copies all of an array, and one that copies some of its rows."""
    if not _is_worth_keeping(array.nbytes):
        return array.copy, partial(array.take, axis=0)  # quicker than an index
    copier = _RecyclingCopier(array)
    return copier.all, copier.rows


def maker_of(
    shape: tuple[int, ...], dtype: DTypeLike, most_kept: int
) -> Callable[[], NDArray[Any]]:
    """A function that makes arrays, whose values are whatever was there.

    Args:
        shape: of the arrays.
        dtype: of the arrays.
        most_kept: for how many of them the memory is kept.
    """
    if not _is_worth_keeping(prod(shape) * np.dtype(dtype).itemsize):
        return partial(np.empty, shape, dtype)
    memory = _Memory(shape, dtype, most_kept)
    return lambda: memory.unused().view()


def _is_worth_keeping(nbytes: int) -> bool:
    return nbytes >= LEAST_BYTES and _COUNTS_REFERENCES


class _Memory:
    """Arrays to make views of, which are used again once alone.

    Whoever holds a view, or anything that shares memory with it, holds a reference to the array
    that it is a view of.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, most_kept: int) -> None:
        self._shape = shape
        self._dtype = dtype
        self._most_kept = most_kept
        self._kept: list[NDArray[Any]] = []
        self._references_alone = 0

    def unused(self) -> NDArray[Any]:
        """An array that there is no view of."""
        kept, alone = self._kept, self._references_alone
        for i in range(len(kept)):
            if sys.getrefcount(kept[i]) == alone:
                return kept[i]
        if len(kept) == self._most_kept:
            del kept[0]
        kept.append(np.empty(self._shape, self._dtype))
        self._references_alone = sys.getrefcount(kept[-1])
        return kept[-1]


class _RecyclingCopier:
    """Copies an array into memory that is used again."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._memory = _Memory(array.shape, array.dtype, _MOST_COPIES)

    def all(self) -> NDArray[Any]:
        """Copies all of it."""
        copy = self._memory.unused().view()
        copy[...] = self._array
        return copy

    def rows(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Copies some of its rows."""
        copy = self._memory.unused()[: len(rows)]
        # With any other mode the result would be buffered once more; the caller's indices are
        # checked already.
        return self._array.take(rows, axis=0, out=copy, mode="clip")
