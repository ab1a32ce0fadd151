"""Carries groups' parts of a step as bytes, for a caller that shares no memory with it.

On an ordinary step nothing is pickled. The actions go as the bytes of their arrays. What comes back
is the bytes of the observations, rewards and flags, of as much of the info columns as is in use,
and, where episodes ended, of the next ones' first observations and info columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays

__all__ = ["NOTHING", "ActorWire", "Extents", "GroupWire"]


class Extents(NamedTuple):
    """How much of a group's arrays is in use.

    Attributes:
        infos: how many columns of infos, and bytes of each environment for them.
        resets: the same for the infos of resets.
        masks: whether environments are asked for masks of actions.
    """

    infos: tuple[int, int] = (0, 0)
    resets: tuple[int, int] = (0, 0)
    masks: bool = False


NOTHING = Extents()


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

    def results(self, extents: Extents) -> list[Any]:
        """What a command left in the arrays, as buffers, some of which are these arrays.

        Args:
            extents: how much of them is in use.
        """
        used = self._arrays.infos.first(*extents.infos)
        # Of a group among others, columns are parts of longer ones.
        parts = [
            *self._always,
            *(self._masks if extents.masks else ()),
            *map(np.ascontiguousarray, (used.cells, used.kinds, used.bytes)),
        ]
        if len(envs := self._ended()):
            used = self._arrays.reset_infos.first(*extents.resets).take(envs)
            parts += [array[envs] for array in self._at_ends]
            parts += [used.bytes, used.cells, used.kinds]
        return parts

    def take_results(self, data: Any, start: int, extents: Extents) -> int:
        """Stores the results that came from :meth:`results`, with the same arguments.

        Args:
            data: what they are in.
            start: where in it they begin.
            extents: as above.

        Returns:
            Where they end.
        """
        used = self._arrays.infos.first(*extents.infos)
        always = [*self._always, *(self._masks if extents.masks else ())]
        start = _load(data, start, [*always, used.cells, used.kinds, used.bytes])
        if len(envs := self._ended()):
            used = self._arrays.reset_infos.first(*extents.resets)
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

    def results(self, extents: Mapping[int, Extents]) -> list[Any]:
        """What a command left in the arrays of some groups, as buffers.

        Args:
            extents: by group, how much of its arrays is in use.
        """
        if len(extents) == len(self._each):
            return self._all.results(_most(extents.values()))
        return list(chain(*(self._each[group].results(used) for group, used in extents.items())))

    def take_results(self, data: Any, start: int, extents: Mapping[int, Extents]) -> int:
        """See :meth:`GroupWire.take_results`."""
        if len(extents) == len(self._each):
            return self._all.take_results(data, start, _most(extents.values()))
        for group, used in extents.items():
            start = self._each[group].take_results(data, start, used)
        return start


def _most(extents: Collection[Extents]) -> Extents:
    """What holds all that is in use in any of some groups."""
    if len(extents) == 1:
        (only,) = extents
        return only
    infos, resets, masks = zip(*extents, strict=True)
    return Extents(_largest(infos), _largest(resets), any(masks))


def _largest(extents: Sequence[tuple[int, int]]) -> tuple[int, int]:
    columns, nbytes = zip(*extents, strict=True)
    return max(columns), max(nbytes)


def _arrays_of(rows: SpaceRows) -> Iterator[NDArray[Any]]:
    return (part for part in rows.parts if not isinstance(part, list))


def _array(data: Any, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape)


def _load(data: Any, start: int, arrays: Sequence[NDArray[Any]]) -> int:
    for array in arrays:
        array[...] = _array(data, start, array.dtype, array.shape)
        start += array.nbytes
    return start
