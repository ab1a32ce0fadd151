"""Copies of an array, in memory that earlier copies had and nobody holds any more.

Memory for a big array comes from the system page by page, and goes back to it when the array is
dropped. For batches of images that takes many times as long as the copying does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_BYTES", "copier_of"]

LEAST_BYTES = 1 << 16
"""Memory for smaller arrays is kept by the allocator itself."""

_MOST_KEPT = 6
"""Two batches that the caller compares, two in the making, and as many of another's."""

_COUNTS_REFERENCES = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)
"""Whether a count of references tells that there is no other; without the GIL it does not."""


def copier_of(array: NDArray[Any]) -> Callable[..., NDArray[Any]]:
    """A function that copies all of an array, or some of its rows: ``copier(indices)``."""
    if array.nbytes < LEAST_BYTES or not _COUNTS_REFERENCES:
        return lambda rows=None: array.copy() if rows is None else array[rows]
    return _RecyclingCopier(array)


class _RecyclingCopier:
    """Copies an array into views of arrays of its own, which are used again once alone.

    Whoever holds a copy, or anything that shares memory with it, holds a reference to the array
    that it is a view of.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._kept: list[NDArray[Any]] = []
        self._references_alone = 0

    def __call__(self, rows: NDArray[np.intp] | None = None) -> NDArray[Any]:
        memory = self._unused()
        if rows is None:
            copy = memory.view()
            copy[...] = self._array
            return copy
        copy = memory[: len(rows)]
        # With any other mode the result would be buffered once more; the caller's indices are
        # checked already.
        return self._array.take(rows, axis=0, out=copy, mode="clip")

    def _unused(self) -> NDArray[Any]:
        kept, alone = self._kept, self._references_alone
        for i in range(len(kept)):
            if sys.getrefcount(kept[i]) == alone:
                return kept[i]
        if len(kept) == _MOST_KEPT:
            del kept[0]
        kept.append(np.empty_like(self._array, subok=False))
        self._references_alone = sys.getrefcount(kept[-1])
        return kept[-1]
