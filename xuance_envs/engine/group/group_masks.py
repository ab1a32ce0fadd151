"""The masks of actions that environments of a group give by their method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.masks import MASK_METHOD, store_mask
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.group.single_env import attribute_of, owner_of

__all__ = ["GroupMasks"]

_ALL = slice(None)

# What tells that the quick way of storing a mask does not take it.
_NOT_TAKEN = (LookupError, TypeError, ValueError, NotImplementedError, BufferError)


class GroupMasks:
    """Asks environments for their masks, once somebody wants them, whenever their state is new.

    Args:
        rows: where the masks go; None where no masks may be asked for.
        pending: by environment, whether its episode has ended and it has not been reset, so that no
            action is chosen in its state.

    Attributes:
        watched (dict[int, Callable]): by place, the methods of the environments that are asked.
        asking (int): the environment that was asked last.
    """

    def __init__(self, rows: SpaceRows | None, pending: NDArray[np.bool_]) -> None:
        self.watched: dict[int, Callable[[], Any]] = {}
        self.asking = 0
        self._rows = rows
        self._pending = memoryview(pending)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        flat = None if rows is None else rows.flat
        # Of each environment what checks and copies an array of bools by itself, if anything does.
        self._quick = [] if flat is None else [memoryview(row) for row in flat]

    def expect(self, env: Any, i: int) -> bool:
        """Asks environment i from its next state on; False if it has no method for that."""
        owner = owner_of(env, MASK_METHOD)
        if owner is not None:
            self.watched[i] = attribute_of(owner, MASK_METHOD)
        return owner is not None

    def watch(self, env: Any, i: int) -> list[Any] | None:
        """Asks environment i now, and from now on unless it fails.

        Returns:
            The parts of its mask, as they lie in the arrays; None if it has no method for that.

        Raises:
            BadValueError: what it returned is none.
        """
        assert self._rows is not None
        if not self.expect(env, i):
            return None
        try:
            self.note([i], [0])
        except BaseException:
            del self.watched[i]
            raise
        return [part[i] for part in self._rows.parts]

    def note(self, places: Iterable[int], at: Any) -> None:
        """Asks some environments, those that are to be asked and in whose state one acts.

        Args:
            places: the environments.
            at: where to say which one is at work.

        Raises:
            BadValueError: what the environment ``asking`` returned is none.
        """
        pending, quick = self._pending, self._quick
        for i in places:
            method = self.watched.get(i)
            if method is None or pending[i]:
                continue
            self.asking = i
            at[0] = i + 1
            mask = method()
            try:
                quick[i][_ALL] = mask
            except _NOT_TAKEN:
                assert self._rows is not None
                store_mask(self._rows, i, mask)
