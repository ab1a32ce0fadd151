"""Carries a group's part of a step as bytes, for a caller that shares no memory with it.

On an ordinary step nothing is pickled. The actions go as the bytes of their arrays. What comes back
is the bytes of the observations, rewards and flags, of as much of the info columns as is in use,
and, where episodes ended, of the next ones' first observations and info columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays

__all__ = ["GroupWire"]


class GroupWire:
    """One end of the way between a caller's arrays and a group's own.

    Args:
        arrays: of this group: at the caller's end its slice of the step's arrays, at the other
            all of its own. Both ends have the same spaces and number of environments.
    """

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self._actions = list(_arrays_of(arrays.actions))
        self._always = [
            *_arrays_of(arrays.observations),
            arrays.rewards,
            arrays.terminated,
            arrays.truncated,
        ]
        self._masks = [] if arrays.masks is None else list(_arrays_of(arrays.masks))
        self._at_ends = list(_arrays_of(arrays.reset_observations))

    def actions(self) -> bytes:
        """The actions, as far as they are arrays."""
        return b"".join(self._actions)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def take_actions(self, data: Any, start: int) -> int:
        """Stores the actions that came from :meth:`actions`.

        Args:
            data: what they are in.
            start: where in it they begin.

        Returns:
            Where they end.
        """
        return _load(data, start, self._actions)

    def results(self, infos: Sequence[int], resets: Sequence[int], masks: bool) -> bytes:
        """What a command left in the arrays.

        Args:
            infos: how many columns of infos, and bytes of each environment for them, are in use.
            resets: the same for the infos of resets.
            masks: whether environments are asked for masks of actions.
        """
        used = self._arrays.infos.first(*infos)
        parts = [
            *self._always,
            *(self._masks if masks else ()),
            used.cells,
            used.kinds,
            np.ascontiguousarray(used.bytes),
        ]
        if len(envs := self._ended()):
            used = self._arrays.reset_infos.first(*resets).take(envs)
            parts += [array[envs] for array in self._at_ends]
            parts += [used.bytes, used.cells, used.kinds]
        return b"".join(parts)

    def take_results(
        self, data: Any, start: int, infos: Sequence[int], resets: Sequence[int], masks: bool
    ) -> int:
        """Stores the results that came from :meth:`results`, with the same arguments.

        Args:
            data: what they are in.
            start: where in it they begin.
            infos: as above.
            resets: as above.
            masks: as above.

        Returns:
            Where they end.
        """
        used = self._arrays.infos.first(*infos)
        always = [*self._always, *(self._masks if masks else ())]
        start = _load(data, start, [*always, used.cells, used.kinds, used.bytes])
        if len(envs := self._ended()):
            used = self._arrays.reset_infos.first(*resets)
            for array in (*self._at_ends, used.bytes):
                came = _array(data, start, array.dtype, (len(envs), *array.shape[1:]))
                array[envs] = came
                start += came.nbytes
            for rows in (used.cells, used.kinds):
                came = _array(data, start, rows.dtype, (len(rows), len(envs)))
                rows[:, envs] = came
                start += came.nbytes
        return start

    def _ended(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._arrays.terminated | self._arrays.truncated)


def _arrays_of(rows: SpaceRows) -> Iterator[NDArray[Any]]:
    return (part for part in rows.parts if not isinstance(part, list))


def _array(data: Any, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape)


def _load(data: Any, start: int, arrays: Sequence[NDArray[Any]]) -> int:
    for array in arrays:
        array[...] = _array(data, start, array.dtype, array.shape)
        start += array.nbytes
    return start
