"""The masks of actions that environments of a group give by their method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.masks import MASK_METHOD, store_mask
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.group.single_env import attribute_of, owner_of

__all__ = ["GroupMasks"]


class GroupMasks:
    """Asks environments for their masks, once somebody wants them, whenever their state is new.

    Args:
        rows: where the masks go; None where no masks may be asked for.
        pending: by environment, whether its episode has ended and it has not been reset, so that no
            action is chosen in its state.

    Attributes:
        watched (dict[int, Callable]): by place, the methods of the environments that are asked.
    """

    def __init__(self, rows: SpaceRows | None, pending: NDArray[np.bool_]) -> None:
        self.watched: dict[int, Callable[[], Any]] = {}
        self._rows = rows
        self._pending = pending

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
            self.note(env, i)
        except BaseException:
            del self.watched[i]
            raise
        return [part[i] for part in self._rows.parts]

    def note(self, env: Any, i: int) -> None:
        """Asks environment i, unless no action is chosen in its state.

        Raises:
            BadValueError: what it returned is none.
        """
        if self._rows is not None and not self._pending[i]:
            store_mask(self._rows, i, self.watched[i]())
