"""Digests of large observations, which a replay log records instead of copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_arrays import StepArrays

# Maximum bytes copied per step. A replay log of MAX_STEPS such steps has MAX_BYTES. Each array may
# take an equal share. Larger observations are recorded as digests; small ones are faster to copy.
_MAX_COPIED_BYTES = 1 << 15


class RowDigests:
    """Digests of an array's rows, which :meth:`update` writes to ``values``.

    A digest is the sum of the row's words of up to 32 bits, each multiplied by a random odd 64-bit
    number. If one word changes, the digest changes. If several words change, it stays equal with a
    probability of at most 2**-32. A 32-bit digest could not detect that two floats changed signs.
    """

    def __init__(self, part: NDArray[Any], values: NDArray[np.uint64]) -> None:
        rows = part.reshape(len(part), -1).view(np.uint8)
        size = next(size for size in (4, 2, 1) if rows.shape[1] % size == 0)
        self._words = rows.view(f"u{size}")
        count = self._words.shape[1]
        self._factors = np.random.default_rng(0).integers(2**64, size=count, dtype=np.uint64) | 1
        self._values = values

    def update(self) -> None:
        np.einsum("ij,j->i", self._words, self._factors, out=self._values)


class StepDigests:
    """Digests of a group's large observations and reset observations, in its arrays."""

    @classmethod
    def of(cls, arrays: StepArrays) -> StepDigests | None:
        """Return the digests; None without large observations or without arrays for digests."""
        observations = arrays.observations.arrays
        max_bytes = _MAX_COPIED_BYTES // (2 * len(observations) + 3)  # 3: reward and flags
        large = [k for k, part in enumerate(observations) if part.nbytes > max_bytes]
        return cls(arrays, large) if large and arrays.digests is not None else None

    def __init__(self, arrays: StepArrays, large: Sequence[int]) -> None:
        observations, resets = arrays.observations.arrays, arrays.reset_observations.arrays
        assert arrays.digests is not None
        assert arrays.reset_digests is not None
        self.values, self.reset_values = arrays.digests, arrays.reset_digests
        self.copied = [part for k, part in enumerate(observations) if k not in large]
        self.copied_resets = [part for k, part in enumerate(resets) if k not in large]
        self._rows = [RowDigests(observations[k], self.values[:, k]) for k in large]
        self._reset_rows = [RowDigests(resets[k], self.reset_values[:, k]) for k in large]

    def update(self, with_resets: bool) -> None:
        for rows in self._rows:
            rows.update()
        for rows in self._reset_rows if with_resets else ():
            rows.update()
