"""Digests of large observations, which a replay log records instead of copies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RowDigests:
    """Digests of an array's rows.

    A digest is the sum of the row's words of up to 32 bits, each multiplied by a random odd 64-bit
    number. A change of one word always changes it. Any other change leaves it equal with a
    probability of at most 2**-32; with sums of 32 bits, a change of two signs would.
    """

    def __init__(self, part: NDArray[Any]) -> None:
        rows = part.reshape(len(part), -1).view(np.uint8)
        size = next(size for size in (4, 2, 1) if rows.shape[1] % size == 0)
        self._words = rows.view(f"u{size}")
        count = self._words.shape[1]
        self._factors = np.random.default_rng(0).integers(2**64, size=count, dtype=np.uint64) | 1
        self.values = np.zeros(len(part), np.uint64)

    def update(self) -> None:
        np.einsum("ij,j->i", self._words, self._factors, out=self.values)
