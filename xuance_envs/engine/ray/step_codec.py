"""Encoding of step data as bytes, for transports without shared memory.

An ordinary step pickles nothing. Actions are sent as array bytes. Results are the bytes of
observations, rewards, flags and used info columns. Where episodes ended, reset observations and
reset infos follow.
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


class Extents(NamedTuple):
    infos: tuple[int, int] = (0, 0)
    resets: tuple[int, int] = (0, 0)
    masks: bool = False


NO_EXTENTS = Extents()


class GroupCodec:
    """Encodes and decodes one group's actions and results; both sides of a connection use it."""

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
        return b"".join(self._actions)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def load_actions(self, data: Any, start: int) -> int:
        """Decode actions; return the end offset."""
        return _load(data, start, self._actions)

    def results(self, extents: Extents) -> list[Any]:
        """Encode a command's results as buffers; some of them are the arrays, not copies."""
        used = self._arrays.infos.first(*extents.infos)
        # If the actor has several groups, these are slices and not contiguous.
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
        """Decode results of :meth:`results` with the same extents; return the end offset."""
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
    """Encodes and decodes the actions and results of an actor's groups.

    Encoding a request to all groups costs no more than encoding a request to one group.
    """

    def __init__(self, arrays: StepArrays, split: Sequence[tuple[int, int]]) -> None:
        first = split[0][0]
        self._all = GroupCodec(arrays)
        self._each = [GroupCodec(arrays.slice(lo - first, hi - first)) for lo, hi in split]

    def actions(self, groups: Sequence[int]) -> bytes:
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
    """Return the smallest extents that cover all given ones."""
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
