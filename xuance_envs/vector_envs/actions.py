"""What the caller of a vector environment gives as actions, taken in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.action_masks import ActionMasks
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.space_rows import EVERY, SpaceRows
from xuance_envs.engine.driver import Driver

__all__ = ["ActionIntake", "are_all_inside", "check_in_space"]

FEW = 32
"""Numbers up to which Python finds the largest one before NumPy has begun to."""

_NONE: Mapping[int, Any] = {}


class ActionIntake:
    """Puts actions where the groups find them.

    Args:
        rows: of the step's arrays.
        drivers: the groups.
        masks: every action is checked to be in its space, and allowed by these once somebody has
            asked for them; None checks nothing.
    """

    def __init__(
        self, rows: SpaceRows, drivers: Sequence[Driver] = (), masks: ActionMasks | None = None
    ) -> None:
        self._rows = rows
        self._flat = rows.flat
        self._drivers = drivers
        self._masks = masks

    def put(
        self,
        actions: Any,
        envs: NDArray[np.intp] | None = None,
        groups: Iterable[int] | None = None,
    ) -> Mapping[int, Any]:
        """Stores the actions of some environments, or of all.

        Args:
            actions: one for each environment.
            envs: the environments; None for all.
            groups: those that have all their actions then; None for all.

        Returns:
            As :meth:`packed`, of those groups.

        Raises:
            ValueError: they do not fit, or cannot travel; nothing has been sent then.
        """
        flat = self._flat
        if (
            flat is not None
            and type(actions) is np.ndarray
            and actions.dtype == flat.dtype
            and actions.shape == (flat.shape if envs is None else (len(envs), *flat.shape[1:]))
            and (self._masks is None or self._are_allowed(actions))
        ):
            flat[... if envs is None else envs] = actions
            return _NONE
        self._put_any(actions, envs)
        return self.packed(groups)

    def _are_allowed(self, actions: NDArray[Any]) -> bool:
        """Whether actions are known to be in their space, and nothing else is asked of them."""
        assert self._masks is not None
        return not self._masks.wanted and are_all_inside(self._rows.layout.space, actions)

    def _put_any(self, actions: Any, envs: NDArray[np.intp] | None) -> None:
        rows = self._rows
        ids = range(len(rows)) if envs is None else envs.tolist()
        try:
            rows.put(actions, EVERY if envs is None else envs, len(ids))
        except BadValueError as error:
            raise ValueError(f"actions for {len(ids)} environments: {error}") from None
        if self._masks is not None:
            check_in_space(rows, range(len(rows)), None if envs is None else ids)
            if self._masks.wanted:
                self._masks.check(envs)

    def packed(self, groups: Iterable[int] | None = None) -> Mapping[int, Any]:
        """By group, or by all, what of its actions does not travel in arrays, if anything does not.

        Raises:
            ValueError: it cannot travel at all.
        """
        if not self._rows.objects:
            return _NONE
        every = range(len(self._drivers)) if groups is None else groups
        return {k: self._packed(self._drivers[k]) for k in every}

    def _packed(self, driver: Driver) -> Any:
        lists = self._rows.objects
        try:
            return driver.pack_actions([values[driver.lo : driver.hi] for values in lists])
        except Exception as error:
            raise ValueError(
                f"the actions for environments {driver.lo} to {driver.hi - 1} cannot be sent to "
                f"their process, because they cannot be pickled: {error}"
            ) from error


def check_in_space(
    rows: SpaceRows, envs: Sequence[int], positions: Sequence[int] | None = None
) -> None:
    """Raises unless actions are in their space.

    Args:
        rows: the actions.
        envs: the environment of each.
        positions: which of them are checked; None for all.

    Raises:
        ValueError: one is not; it names its environment.
    """
    space = rows.layout.space
    if positions is None and are_all_inside(space, rows.flat):
        return
    values = rows.reader()()
    for position in range(len(rows)) if positions is None else positions:
        if not space.contains(values[position]):
            raise ValueError(
                f"the action for environment {envs[position]}: expected one in {space}, "
                f"got {values[position]!r}"
            )


def are_all_inside(space: Space[Any], batch: NDArray[Any] | None) -> bool:
    """Whether a batch is known to be in its space, for the spaces that most environments have.

    Args:
        space: of one value.
        batch: an array of values; None for anything else, of which nothing is known.
    """
    if batch is None:
        return False
    if type(space) is spaces.Discrete:
        first = int(space.start)
        if batch.size <= FEW:
            values = batch.ravel().tolist()
            return not values or (first <= min(values) and max(values) < first + int(space.n))
        return bool(first <= int(batch.min()) and int(batch.max()) < first + int(space.n))
    if type(space) is spaces.Box:
        return bool(((batch >= space.low) & (batch <= space.high)).all())
    return False
