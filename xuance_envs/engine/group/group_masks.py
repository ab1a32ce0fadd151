"""Action masks from the methods of a group's environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.mask_layout import MASK_METHOD, store_mask
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.group.single_env import find_layer, get_attribute

_ALL = slice(None)

# Raised when a mask does not fit a fast row.
_STORE_ERRORS = (LookupError, TypeError, ValueError, NotImplementedError, BufferError)


class GroupMasks:
    def __init__(self, rows: SpaceRows | None, pending: NDArray[np.bool_]) -> None:
        self.mask_methods: dict[int, Callable[[], Any]] = {}
        self.current_env = 0
        self._rows = rows
        self._pending = memoryview(pending)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        flat = None if rows is None else rows.flat
        # One per environment: assignment checks and copies a bool array in C.
        self._memoryviews = [] if flat is None else [memoryview(row) for row in flat]

    def add(self, env: Any, i: int, read: bool) -> list[Any] | None:
        """Store environment i's mask method; return its mask if it should and can be read."""
        owner = find_layer(env, MASK_METHOD)
        if owner is None:
            return None
        self.mask_methods[i] = get_attribute(owner, MASK_METHOD)
        if self._rows is None or not read:
            return None
        try:
            self.update([i], [0])
        except BaseException:
            del self.mask_methods[i]
            raise
        return [part[i] for part in self._rows.parts]

    def update(self, places: Iterable[int], active_env: Any) -> None:
        """Call the stored mask methods for ``places``, except while a reset is pending."""
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
