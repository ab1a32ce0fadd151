"""Latest observations of a vectorized environment: its ``buf_obs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.serialization import copy_of


class LastObservationBuffer:
    """Writable batch of the latest observations; a large one is copied only on access."""

    def __init__(self, rows: SpaceRows, copy_results: bool) -> None:
        self.arrays_are_current = False
        self._rows = rows
        self._copy = rows.copy_flat or rows.copy_writable
        self._batch: Any = self._copy()
        self._copies_lazily = copy_results and rows.is_large
        self._returned: Any = None

    def mark_all_new(self, returned: Any) -> None:
        """Set the batch to the results of a step or reset of all environments."""
        if self._copies_lazily:
            self._batch, self._returned, self.arrays_are_current = None, returned, True
        else:
            self._batch = self._copy()

    def get(self) -> Any:
        """Return the batch; copy it first if this was deferred."""
        if self._batch is None:
            if self.arrays_are_current:
                self._batch = self._rows.copy_writable()
            else:  # a step is in progress
                self._batch = self._rows.copy_of_batch(self._returned)
            self._copies_lazily = False  # later accesses are likely
            self._returned = None
        return self._batch

    def set(self, batch: Any) -> None:
        self._batch = batch

    def rows(self, envs: Sequence[int]) -> list[list[Any]]:
        """Return copies of the observations of ``envs`` as lists of leaves."""
        in_arrays = self._batch is None and self.arrays_are_current
        batch = self._returned if self._batch is None else self._batch
        parts = self._rows.parts if in_arrays else self._rows.layout.flatten(batch)
        return [
            [part[i].copy() if isinstance(part, np.ndarray) else copy_of(part[i]) for part in parts]
            for i in envs
        ]

    def put(self, before: Any, envs: Sequence[int], rows: Sequence[Sequence[Any]]) -> None:
        """Set the batch to a copy of ``before`` with ``rows`` as the observations of ``envs``."""
        parts = []
        for k, old in enumerate(self._rows.layout.flatten(before)):
            new = list(old) if isinstance(self._rows.parts[k], list) else old.copy()
            for i, row in zip(envs, rows, strict=True):
                new[i] = row[k]
            parts.append(new)
        self._batch = self._rows.layout.unflatten(parts)

    def update(self, before: Any, envs: NDArray[np.intp]) -> None:
        """Set the batch to a copy of ``before`` with the new observations of ``envs``."""
        self._batch = self._rows.copy_updating(before, envs)
