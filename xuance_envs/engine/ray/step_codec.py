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

__all__ = ["NO_EXTENTS", "ActorCodec", "Extents", "GroupCodec"]


class Extents(NamedTuple):
    """How much of a group's arrays is in use."""

    infos: tuple[int, int] = (0, 0)
    resets: tuple[int, int] = (0, 0)
    masks: bool = False


NO_EXTENTS = Extents()


class GroupCodec:
    """One end of the way between a caller's arrays and a group's own."""

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
        self._reset_observations = list(_arrays_of(arrays.reset_observations))

    def actions(self) -> bytes:
        """The actions, as far as they are arrays."""
        return b"".join(self._actions)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def load_actions(self, data: Any, start: int) -> int:
        """Stores the actions that came from :meth:`actions`."""
        return _load(data, start, self._actions)

    def results(self, extents: Extents) -> list[Any]:
        """What a command left in the arrays, as buffers, some of which are these arrays."""
        used = self._arrays.infos.first(*extents.infos)
        # Of a group among others, columns are parts of longer ones.
        parts = [
            *self._always,
            *(self._masks if extents.masks else ()),
            *map(np.ascontiguousarray, (used.cells, used.kinds, used.bytes)),
        ]
        if len(envs := self._ended()):
            used = self._arrays.reset_infos.first(*extents.resets).take(envs)
            parts += [array[envs] for array in self._reset_observations]
            parts += [used.bytes, used.cells, used.kinds]
        return parts

    def load_results(self, data: Any, start: int, extents: Extents) -> int:
        """Stores the results that came from :meth:`results`, with the same arguments."""
        used = self._arrays.infos.first(*extents.infos)
        always = [*self._always, *(self._masks if extents.masks else ())]
        start = _load(data, start, [*always, used.cells, used.kinds, used.bytes])
        if len(envs := self._ended()):
            used = self._arrays.reset_infos.first(*extents.resets)
            for array in (*self._reset_observations, used.bytes):
                received = _array(data, start, array.dtype, (len(envs), *array.shape[1:]))
                array[envs] = received
                start += received.nbytes
            for rows in (used.cells, used.kinds):
                received = _array(data, start, rows.dtype, (len(rows), len(envs)))
                rows[:, envs] = received
                start += received.nbytes
        return start

    def _ended(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._arrays.terminated | self._arrays.truncated)


class ActorCodec:
    """One end of the way between a caller's arrays and those of all groups of an actor.

    What all of its groups have in common travels together, which costs as much as one of them.
    """

    def __init__(self, arrays: StepArrays, split: Sequence[tuple[int, int]]) -> None:
        first = split[0][0]
        self._all = GroupCodec(arrays)
        self._each = [GroupCodec(arrays.slice(lo - first, hi - first)) for lo, hi in split]

    def actions(self, groups: Sequence[int]) -> bytes:
        """The actions of some groups, as far as they are arrays."""
        if len(groups) == len(self._each):
            return self._all.actions()
        return b"".join([self._each[group].actions() for group in groups])

    def load_actions(self, data: Any, start: int, groups: Sequence[int]) -> int:
        if len(groups) == len(self._each):
            return self._all.load_actions(data, start)
        for group in groups:
            start = self._each[group].load_actions(data, start)
        return start

    def results(self, extents: Mapping[int, Extents]) -> list[Any]:
        """What a command left in the arrays of some groups, as buffers."""
        if len(extents) == len(self._each):
            return self._all.results(_union(extents.values()))
        return list(chain(*(self._each[group].results(used) for group, used in extents.items())))

    def load_results(self, data: Any, start: int, extents: Mapping[int, Extents]) -> int:
        if len(extents) == len(self._each):
            return self._all.load_results(data, start, _union(extents.values()))
        for group, used in extents.items():
            start = self._each[group].load_results(data, start, used)
        return start


def _union(extents: Collection[Extents]) -> Extents:
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
