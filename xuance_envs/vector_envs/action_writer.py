"""Validation of actions and their transfer into the arrays that groups read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.action_masks import ActionMasks
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.space_rows import ALL_ENVS, SpaceRows
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import counted, name_envs

SMALL_BATCH = 128  # up to this size, Python's min and max are faster than NumPy's

_NONE: Mapping[int, Any] = {}


class ActionWriter:
    def __init__(
        self, rows: SpaceRows, drivers: Sequence[Driver] = (), masks: ActionMasks | None = None
    ) -> None:
        self._rows = rows
        self._flat = flat = rows.flat
        self._space = rows.layout.space
        self._dtype = None if flat is None else flat.dtype
        self._shape: tuple[int, ...] = () if flat is None else flat.shape
        self._drivers = drivers
        self._masks = masks

    def put(
        self,
        actions: Any,
        envs: NDArray[np.intp] | None = None,
        groups: Iterable[int] | None = None,
    ) -> Mapping[int, Any]:
        """Store actions in the arrays; return the parts that are objects, packed for each group."""
        flat, masks = self._flat, self._masks
        if (
            flat is not None
            and type(actions) is np.ndarray
            and actions.dtype == self._dtype
            and actions.shape == (self._shape if envs is None else (len(envs), *self._shape[1:]))
            and (masks is None or (not masks.wanted and all_in_space(self._space, actions)))
        ):
            flat[... if envs is None else envs] = actions
            return _NONE
        self._put_any(actions, envs)
        return self.packed(groups)

    def _put_any(self, actions: Any, envs: NDArray[np.intp] | None) -> None:
        rows = self._rows
        ids = range(len(rows)) if envs is None else envs.tolist()
        if envs is not None and rows.objects:  # they may be packed later
            actions = copy_of(actions)
        try:
            rows.put(actions, ALL_ENVS if envs is None else envs, len(ids))
        except BadValueError as error:
            raise ValueError(
                f"actions for {counted(len(ids), 'environment')}: {error}{_hint(rows, actions)}"
            ) from None
        if self._masks is not None:
            check_in_space(rows, range(len(rows)), None if envs is None else ids)
            if self._masks.wanted:
                self._masks.check(envs)

    def packed(self, groups: Iterable[int] | None = None) -> Mapping[int, Any]:
        """Pack the action parts that are objects, for each group."""
        lists = self._rows.objects
        if not lists:
            return _NONE
        packed = {}
        for k in range(len(self._drivers)) if groups is None else groups:
            driver = self._drivers[k]
            lo, hi = driver.lo, driver.hi
            try:
                packed[k] = driver.pack_actions([values[lo:hi] for values in lists])
            except Exception as error:
                raise ValueError(
                    f"the actions for {name_envs(range(lo, hi))} cannot be pickled for the "
                    f"worker: {error}"
                ) from error
        return packed


def _hint(rows: SpaceRows, actions: Any) -> str:
    try:
        single = rows.layout.space.contains(actions)
    except Exception:  # of a custom space
        single = False
    if not single:
        return ""
    return ". This is one environment's action; envs.sample_actions() returns one per environment"


def check_in_space(
    rows: SpaceRows, envs: Sequence[int], positions: Sequence[int] | None = None
) -> None:
    """Raise a ValueError unless all actions, or those at ``positions``, are in their space."""
    space = rows.layout.space
    if positions is None and all_in_space(space, rows.flat):
        return
    values = list(rows.reader()())
    for position in range(len(rows)) if positions is None else positions:
        if not space.contains(values[position]):
            raise ValueError(
                f"the action for environment {envs[position]}: expected one in {space}, "
                f"got {values[position]!r}"
            )


def all_in_space(space: Space[Any], batch: NDArray[Any] | None) -> bool:
    """Return True if a fast check of a Discrete or Box space shows that all actions fit."""
    if batch is None:
        return False
    if type(space) is spaces.Discrete:
        first = int(space.start)
        if batch.size <= SMALL_BATCH:
            values = set(batch.ravel().tolist())
            return not values or (first <= min(values) and max(values) < first + int(space.n))
        return bool(first <= int(batch.min()) and int(batch.max()) < first + int(space.n))
    if type(space) is spaces.Box:
        return bool(((batch >= space.low) & (batch <= space.high)).all())
    return False
