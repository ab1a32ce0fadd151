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

__all__ = ["MIN_POOLED_BYTES", "make_allocator", "make_copiers"]

MIN_POOLED_BYTES = 1 << 16
"""Memory for smaller arrays is kept by the allocator itself."""

_POOL_SIZE = 6
"""Two batches that the caller compares, two in the making, and as many of another's."""

_HAS_REFCOUNTS = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)
"""Whether a count of references tells that there is no other; without the GIL it does not."""


def make_copiers(
    array: NDArray[Any],
) -> tuple[Callable[[], NDArray[Any]], Callable[[NDArray[np.intp]], NDArray[Any]]]:
    """A function that copies all of an array, and one that copies some of its rows."""
    if not _should_pool(array.nbytes):
        return array.copy, partial(array.take, axis=0)  # quicker than an index
    copier = _PooledCopier(array)
    return copier.all, copier.rows


def make_allocator(
    shape: tuple[int, ...], dtype: DTypeLike, pool_size: int
) -> Callable[[], NDArray[Any]]:
    """A function that makes arrays, whose values are whatever was there."""
    if not _should_pool(prod(shape) * np.dtype(dtype).itemsize):
        return partial(np.empty, shape, dtype)
    pool = _BufferPool(shape, dtype, pool_size)
    return lambda: pool.acquire().view()


def _should_pool(nbytes: int) -> bool:
    return nbytes >= MIN_POOLED_BYTES and _HAS_REFCOUNTS


class _BufferPool:
    """Arrays to make views of, which are used again once alone.

    Whoever holds a view, or anything that shares memory with it, holds a reference to the array
    that it is a view of.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, pool_size: int) -> None:
        self._shape = shape
        self._dtype = dtype
        self._size = pool_size
        self._buffers: list[NDArray[Any]] = []
        self._refcount_when_free = 0

    def acquire(self) -> NDArray[Any]:
        """An array that there is no view of."""
        buffers, alone = self._buffers, self._refcount_when_free
        for i in range(len(buffers)):
            if sys.getrefcount(buffers[i]) == alone:
                return buffers[i]
        if len(buffers) == self._size:
            del buffers[0]
        buffers.append(np.empty(self._shape, self._dtype))
        self._refcount_when_free = sys.getrefcount(buffers[-1])
        return buffers[-1]


class _PooledCopier:
    """Copies an array into memory that is used again."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._pool = _BufferPool(array.shape, array.dtype, _POOL_SIZE)

    def all(self) -> NDArray[Any]:
        """Copies all of it."""
        copy = self._pool.acquire().view()
        copy[...] = self._array
        return copy

    def rows(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Copies some of its rows."""
        copy = self._pool.acquire()[: len(rows)]
        # With any other mode the result would be buffered once more; the caller's indices are
        # checked already.
        return self._array.take(rows, axis=0, out=copy, mode="clip")
