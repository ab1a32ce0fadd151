"""The masks of actions that environments of a group give by their method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.mask_layout import MASK_METHOD, store_mask
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.group.single_env import find_layer, get_attribute

__all__ = ["GroupMasks"]

_ALL = slice(None)

# What tells that the quick way of storing a mask does not take it.
_STORE_ERRORS = (LookupError, TypeError, ValueError, NotImplementedError, BufferError)


class GroupMasks:
    """Asks environments for their masks, once somebody wants them, whenever their state is new."""

    def __init__(self, rows: SpaceRows | None, pending: NDArray[np.bool_]) -> None:
        self.mask_methods: dict[int, Callable[[], Any]] = {}
        self.current_env = 0
        self._rows = rows
        self._pending = memoryview(pending)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        flat = None if rows is None else rows.flat
        # Of each environment what checks and copies an array of bools by itself, if anything does.
        self._memoryviews = [] if flat is None else [memoryview(row) for row in flat]

    def add(self, env: Any, i: int) -> bool:
        """Asks environment i from its next state on; False if it has no method for that."""
        owner = find_layer(env, MASK_METHOD)
        if owner is not None:
            self.mask_methods[i] = get_attribute(owner, MASK_METHOD)
        return owner is not None

    def add_and_read(self, env: Any, i: int) -> list[Any] | None:
        """Asks environment i now, and from now on unless it fails."""
        assert self._rows is not None
        if not self.add(env, i):
            return None
        try:
            self.update([i], [0])
        except BaseException:
            del self.mask_methods[i]
            raise
        return [part[i] for part in self._rows.parts]

    def update(self, places: Iterable[int], active_env: Any) -> None:
        """Asks some environments, those that are to be asked and in whose state one acts."""
        pending, memoryviews = self._pending, self._memoryviews
        for i in places:
            method = self.mask_methods.get(i)
            if method is None or pending[i]:
                continue
            self.current_env = i
            active_env[0] = i + 1
            mask = method()
            try:
                memoryviews[i][_ALL] = mask
            except _STORE_ERRORS:
                assert self._rows is not None
                store_mask(self._rows, i, mask)
