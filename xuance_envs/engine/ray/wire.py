"""Carries groups' parts of a step as bytes, for a caller that shares no memory with it.

On an ordinary step nothing is pickled. The actions go as the bytes of their arrays. What comes back
is the bytes of the observations, rewards and flags, of as many info columns as are in use, and,
where episodes ended, of the next ones' first observations and info columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays

__all__ = ["ActorWire", "GroupWire"]


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

    def results(self, columns: tuple[int, int]) -> bytes:
        """What a command left in the arrays.

        Args:
            columns: how many columns are in use: of infos, and of the infos of resets.
        """
        infos = self._arrays.infos.first(columns[0])
        # Of a group among others, columns are parts of longer ones.
        parts = [*self._always, *map(np.ascontiguousarray, (infos.cells, infos.kinds))]
        if len(envs := self._ended()):
            resets = self._arrays.reset_infos.first(columns[1]).take(envs)
            parts += [array[envs] for array in self._at_ends]
            parts += [resets.cells, resets.kinds]
        return b"".join(parts)  # type: ignore[arg-type]  # as above

    def take_results(self, data: Any, start: int, columns: tuple[int, int]) -> int:
        """Stores the results that came from :meth:`results`, with the same arguments.

        Args:
            data: what they are in.
            start: where in it they begin.
            columns: as above.

        Returns:
            Where they end.
        """
        infos = self._arrays.infos.first(columns[0])
        start = _load(data, start, [*self._always, infos.cells, infos.kinds])
        if len(envs := self._ended()):
            resets = self._arrays.reset_infos.first(columns[1])
            for array in self._at_ends:
                came = _array(data, start, array.dtype, (len(envs), *array.shape[1:]))
                array[envs] = came
                start += came.nbytes
            for rows in (resets.cells, resets.kinds):
                came = _array(data, start, rows.dtype, (len(rows), len(envs)))
                rows[:, envs] = came
                start += came.nbytes
        return start

    def _ended(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._arrays.terminated | self._arrays.truncated)


class ActorWire:
    """One end of the way between a caller's arrays and those of all groups of an actor.

    What all of its groups have in common travels together, which costs as much as one of them.

    Args:
        arrays: of all of them.
        split: index of the first environment and index after the last, of each group; those of
            the first group begin the arrays.
    """

    def __init__(self, arrays: StepArrays, split: Sequence[tuple[int, int]]) -> None:
        first = split[0][0]
        self._all = GroupWire(arrays)
        self._each = [GroupWire(arrays.slice(lo - first, hi - first)) for lo, hi in split]

    def actions(self, groups: Sequence[int]) -> bytes:
        """The actions of some groups, as far as they are arrays."""
        if len(groups) == len(self._each):
            return self._all.actions()
        return b"".join([self._each[group].actions() for group in groups])

    def take_actions(self, data: Any, start: int, groups: Sequence[int]) -> int:
        """See :meth:`GroupWire.take_actions`."""
        if len(groups) == len(self._each):
            return self._all.take_actions(data, start)
        for group in groups:
            start = self._each[group].take_actions(data, start)
        return start

    def results(self, columns: Mapping[int, tuple[int, int]]) -> bytes:
        """What a command left in the arrays of some groups.

        Args:
            columns: by group, how many columns are in use: see :meth:`GroupWire.results`.
        """
        if len(columns) == len(self._each):
            return self._all.results(_most(columns))
        return b"".join([self._each[group].results(used) for group, used in columns.items()])

    def take_results(self, data: Any, start: int, columns: Mapping[int, tuple[int, int]]) -> int:
        """See :meth:`GroupWire.take_results`."""
        if len(columns) == len(self._each):
            return self._all.take_results(data, start, _most(columns))
        for group, used in columns.items():
            start = self._each[group].take_results(data, start, used)
        return start


def _most(columns: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    infos, resets = zip(*columns.values(), strict=True)
    return max(infos), max(resets)


def _arrays_of(rows: SpaceRows) -> Iterator[NDArray[Any]]:
    return (part for part in rows.parts if not isinstance(part, list))


def _array(data: Any, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape)


def _load(data: Any, start: int, arrays: Sequence[NDArray[Any]]) -> int:
    for array in arrays:
        array[...] = _array(data, start, array.dtype, array.shape)
        start += array.nbytes
    return start
