"""Arrays and array copies in reused memory.

The operating system maps the memory of a large new array page by page, and unmaps it when the
array is freed. For a batch of images, mapping takes many times as long as copying.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from xuance_envs.engine.system.gil import gil_is_enabled

MIN_POOLED_BYTES = 1 << 16  # minimum size of pooled arrays; the allocator reuses smaller ones
_POOL_SIZE = 6  # two arrays that the user compares, two being filled, two in another library

# True if reference counts can show that an array is unused, which requires the GIL.
HAS_REFCOUNTS = sys.implementation.name == "cpython" and gil_is_enabled()


def make_copiers(
    array: NDArray[Any],
) -> tuple[Callable[[], NDArray[Any]], Callable[[NDArray[np.intp]], NDArray[Any]]]:
    if not _should_pool(array.nbytes):
        return array.copy, partial(array.take, axis=0)  # faster than indexing
    pool = _BufferPool(array.shape, array.dtype, _POOL_SIZE)

    def copy_all() -> NDArray[Any]:
        copy = pool.acquire().view()
        copy[...] = array
        return copy

    def copy_rows(rows: NDArray[np.intp]) -> NDArray[Any]:
        copy = pool.acquire()[: len(rows)]
        # Other modes of take() use a temporary buffer. The indices have been checked already.
        return array.take(rows, axis=0, out=copy, mode="clip")

    return copy_all, copy_rows


def make_allocator(
    shape: tuple[int, ...], dtype: DTypeLike, pool_size: int
) -> Callable[[], NDArray[Any]]:
    if not _should_pool(prod(shape) * np.dtype(dtype).itemsize):
        return partial(np.empty, shape, dtype)
    pool = _BufferPool(shape, dtype, pool_size)
    return lambda: pool.acquire().view()


def _should_pool(nbytes: int) -> bool:
    return nbytes >= MIN_POOLED_BYTES and HAS_REFCOUNTS


class _BufferPool:
    """Arrays that are given out as views; an array without a remaining view is reused."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, pool_size: int) -> None:
        self._shape = shape
        self._dtype = dtype
        self._size = pool_size
        self._buffers: list[NDArray[Any]] = []
        self._refcount_when_free = 0

    def acquire(self) -> NDArray[Any]:
        buffers, free_count = self._buffers, self._refcount_when_free
        for i in range(len(buffers)):
            if sys.getrefcount(buffers[i]) == free_count:
                return buffers[i]
        if len(buffers) == self._size:
            del buffers[0]
        buffers.append(np.empty(self._shape, self._dtype))
        self._refcount_when_free = sys.getrefcount(buffers[-1])
        return buffers[-1]
