"""Positions of arrays in a block of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

_CACHE_LINE = 64  # two arrays never share one
ArraySpec = tuple[np.dtype[Any], tuple[int, ...], int, int]  # dtype, shape, start, end


def array_specs(arrays: Iterable[tuple[np.dtype[Any], tuple[int, ...]]]) -> Iterator[ArraySpec]:
    """Yield the specs of consecutive arrays with these dtypes and shapes."""
    start = 0
    for dtype, shape in arrays:
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        yield dtype, shape, start, end
        start = round_up(end, _CACHE_LINE)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
