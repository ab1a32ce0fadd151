"""Encoding of step data as bytes, for transports without shared memory.

An ordinary step pickles nothing. Its results are the bytes of observations, rewards and flags, then
of the action masks and info columns in use. Reset observations and reset infos follow for the
environments whose episode ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        self._actions = [*map(bytes_of, arrays.actions.arrays)]
        results = arrays.rewards, arrays.terminated, arrays.truncated
        self._always = [*arrays.observations.arrays, *results]
        self._masks = [] if arrays.masks is None else arrays.masks.arrays
        self._reset_observations = arrays.reset_observations.arrays
        self._use(NO_EXTENTS)

    def _use(self, extents: Extents) -> None:
        """Select the arrays, and the parts of info arrays, that results contain."""
        masks = self._masks if extents.masks else ()
        infos = self._arrays.infos.first(*extents.infos)
        resets = self._arrays.reset_infos.first(*extents.resets)
        parts = *self._always, *masks, infos.cells, infos.kinds, infos.bytes
        self._parts = [bytes_of(array) for array in parts if array.size]
        self._has_slices = any(isinstance(part, np.ndarray) for part in self._parts)
        # Of these, results contain only the rows or columns of environments whose episode ended.
        rows = *self._reset_observations, resets.bytes
        self._end_rows = [array for array in rows if array.size]
        self._end_columns = [array for array in (resets.cells, resets.kinds) if array.size]
        self._extents = extents  # last: after an interrupt, the next call selects again

    def actions(self) -> bytes:
        return b"".join(_contiguous(self._actions))

    def load_actions(self, data: Any, start: int) -> int:
        """Decode actions; return the end offset."""
        return _load(data, start, self._actions)

    def results(self, extents: Extents) -> list[Any]:
        """Encode a command's results as buffers; some are views of the step arrays, not copies."""
        if extents != self._extents:
            self._use(extents)
        parts = _contiguous(self._parts) if self._has_slices else [*self._parts]
        if len(envs := self.ended()):
            parts += [array.take(envs, 0) for array in self._end_rows]
            parts += [array.take(envs, 1) for array in self._end_columns]
        return parts

    def load_results(self, data: Any, start: int, extents: Extents) -> tuple[int, NDArray[np.intp]]:
        """Decode results; return the end offset, and the environments whose episode ended."""
        if extents != self._extents:
            self._use(extents)
        start = _load(data, start, self._parts)
        if len(envs := self.ended()):
            for array in self._end_rows:
                rows = np.ndarray((len(envs), *array.shape[1:]), array.dtype, data, start)
                array[envs] = rows
                start += rows.nbytes
            for array in self._end_columns:
                columns: NDArray[Any] = np.ndarray(
                    (len(array), len(envs)), array.dtype, data, start
                )
                array[:, envs] = columns
                start += columns.nbytes
        return start, envs

    def ended(self) -> NDArray[np.intp]:
        """Return the indices of environments whose episode ended."""
        return (self._arrays.terminated | self._arrays.truncated).nonzero()[0]

    @property
    def form(self) -> list[list[Any]]:
        """Dtypes and shapes of the arrays in every result, then those of reset observations."""
        arrays = [*self._always, *self._reset_observations]
        return [[array.dtype.str, list(array.shape)] for array in arrays]

    @property
    def nbytes(self) -> int:
        """Size in bytes of the current results, when encoded with the last extents."""
        per_end = sum(array.nbytes for array in (*self._end_rows, *self._end_columns))
        per_end //= len(self._arrays.rewards)
        per_step: int = sum(part.nbytes for part in self._parts)
        return per_step + per_end * len(self.ended())


def bytes_of(array: NDArray[Any]) -> memoryview | NDArray[Any]:
    """Return a writable view of the bytes of an array, or the array if it is not contiguous."""
    # If the actor has several groups, info columns are slices.
    return array.reshape(-1).view(np.uint8).data if array.flags.c_contiguous else array


def _contiguous(parts: Sequence[memoryview | NDArray[Any]]) -> list[Any]:
    return [each if type(each) is memoryview else np.ascontiguousarray(each) for each in parts]


def _load(data: Any, start: int, parts: Sequence[memoryview | NDArray[Any]]) -> int:
    """Copy bytes to the parts; return the end offset. Raise ValueError if bytes are missing."""
    view = memoryview(data)
    for part in parts:
        end = start + part.nbytes
        piece = view[start:end]
        if type(part) is memoryview:
            part[:] = piece
        else:
            part[...] = np.frombuffer(piece, part.dtype).reshape(part.shape)
        start = end
    return start
