"""Encoding of step data as bytes, for transports without shared memory.

An ordinary step pickles nothing. Its results are the bytes of observations, rewards, flags and used
info columns, and of reset observations and reset infos where episodes ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    """Codec of one group's actions and results; both sides of a connection use it."""

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self._actions = list(_arrays_of(arrays.actions))
        results = arrays.rewards, arrays.terminated, arrays.truncated
        self._always = [*_arrays_of(arrays.observations), *results]
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
        """Decode the output of :meth:`results` for these extents; return the end offset."""
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

    @property
    def form(self) -> list[list[Any]]:
        """Dtypes and shapes: of the arrays in every result, then of reset observations."""
        arrays = [*self._always, *self._reset_observations]
        return [[array.dtype.str, list(array.shape)] for array in arrays]

    def nbytes(self, extents: Extents) -> int:
        """Return the size of the results that the arrays hold now."""
        used = self._arrays.infos.first(*extents.infos)
        masks = self._masks if extents.masks else ()
        parts = [*self._always, *masks, used.cells, used.kinds, used.bytes]
        resets = self._arrays.reset_infos.first(*extents.resets)
        per_end = [*self._reset_observations, resets.bytes, resets.cells, resets.kinds]
        end_bytes = sum(part.nbytes for part in per_end) // len(self._arrays.rewards)
        nbytes: int = sum(part.nbytes for part in parts) + end_bytes * len(self._ended())
        return nbytes

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
