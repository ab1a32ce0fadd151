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

from xuance_envs.engine.cpus import gil_is_enabled

MIN_POOLED_BYTES = 1 << 16  # minimum size of pooled arrays; the allocator reuses smaller ones
_POOL_SIZE = 6  # two arrays that the user compares, two being filled, two in another library

# True if reference counts can show that an array is unused, which requires the GIL.
HAS_REFCOUNTS = sys.implementation.name == "cpython" and gil_is_enabled()


def make_copiers(
    array: NDArray[Any],
) -> tuple[Callable[[], NDArray[Any]], Callable[[NDArray[np.intp]], NDArray[Any]]]:
    if not _should_pool(array.nbytes):
        return array.copy, partial(array.take, axis=0)  # faster than indexing
    acquire = _make_pool(array.shape, array.dtype, _POOL_SIZE)

    def copy_all() -> NDArray[Any]:
        copy = acquire().view()
        copy[...] = array
        return copy

    def copy_rows(rows: NDArray[np.intp]) -> NDArray[Any]:
        copy = acquire()[: len(rows)]
        # Other modes of take() use a temporary buffer. The indices have been checked already.
        return array.take(rows, axis=0, out=copy, mode="clip")

    return copy_all, copy_rows


def make_allocator(
    shape: tuple[int, ...], dtype: DTypeLike, pool_size: int
) -> Callable[[], NDArray[Any]]:
    if not _should_pool(prod(shape) * np.dtype(dtype).itemsize):
        return partial(np.empty, shape, dtype)
    acquire = _make_pool(shape, dtype, pool_size)
    return lambda: acquire().view()


def _should_pool(nbytes: int) -> bool:
    return nbytes >= MIN_POOLED_BYTES and HAS_REFCOUNTS


def _make_pool(shape: tuple[int, ...], dtype: DTypeLike, size: int) -> Callable[[], NDArray[Any]]:
    """Return a function that returns an array without views, if possible one that it returned."""
    buffers: list[NDArray[Any]] = []
    free_count = 0

    def acquire() -> NDArray[Any]:
        nonlocal free_count
        for i in range(len(buffers)):
            if sys.getrefcount(buffers[i]) == free_count:
                return buffers[i]
        if len(buffers) == size:
            del buffers[0]
        buffers.append(np.empty(shape, dtype))
        free_count = sys.getrefcount(buffers[-1])
        return buffers[-1]

    return acquire
