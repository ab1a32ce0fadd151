"""Arrays of one vector step, in private or shared memory.

A worker writes to its slice of these arrays, so an ordinary step pickles nothing.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import INFO_BYTES, InfoArrays
from xuance_envs.engine.data.mask_layout import mask_layout
from xuance_envs.engine.data.memory_layout import ArraySpec, array_specs, round_up
from xuance_envs.engine.data.output_buffers import OutputBuffers
from xuance_envs.engine.data.space_layout import SpaceLayout, StepSpaces, shape_of_rewards
from xuance_envs.engine.data.space_rows import Index, SpaceRows

_FLOAT32 = np.dtype(np.float32)  # saves a lookup in each step


@dataclass(eq=False)
class StepArrays:
    observations: SpaceRows
    reset_observations: SpaceRows
    actions: SpaceRows
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    pending: NDArray[np.bool_]
    infos: InfoArrays
    reset_infos: InfoArrays
    masks: SpaceRows | None
    outputs: OutputBuffers | None
    digests: NDArray[np.uint64] | None  # of observations, (num_envs, leaves); None if not computed
    reset_digests: NDArray[np.uint64] | None

    @staticmethod
    def nbytes(
        spaces: StepSpaces,
        num_envs: int,
        info_bytes: int = INFO_BYTES,
        outputs: bool = False,
        digests: bool = False,
    ) -> int:
        observations, *_, specs = _plan(spaces, num_envs, info_bytes, digests)
        end = specs[-1][-1]
        if not outputs:
            return end
        return round_up(end, mmap.PAGESIZE) + OutputBuffers.nbytes(observations, num_envs)

    @classmethod
    def allocate(
        cls,
        spaces: StepSpaces,
        num_envs: int,
        memory: Any = None,
        info_bytes: int = INFO_BYTES,
        outputs: bool = False,
        digests: bool = False,
    ) -> StepArrays:
        observations, actions, masks, specs = _plan(spaces, num_envs, info_bytes, digests)
        if memory is None:
            memory = np.zeros(specs[-1][-1], np.uint8)  # unused pages take no memory
        arrays: Iterator[Any] = (
            np.frombuffer(memory, dtype, int(np.prod(shape)), start).reshape(shape)
            for dtype, shape, start, _ in specs
        )

        def rows(layout: SpaceLayout) -> SpaceRows:
            parts = [
                [None] * num_envs if leaf.dtype is None else next(arrays) for leaf in layout.leaves
            ]
            return SpaceRows(layout, parts, num_envs)

        buffers = None
        if outputs:
            start = round_up(specs[-1][-1], mmap.PAGESIZE)
            buffers = OutputBuffers(observations, num_envs, memory, start, 0, num_envs)
        # In the order of the fields, which is also that of the arrays in memory.
        values: list[Any] = [rows(observations), rows(observations), rows(actions)]
        values += islice(arrays, 4)
        values += [InfoArrays(*islice(arrays, 3)), InfoArrays(*islice(arrays, 3))]
        values += [None if masks is None else rows(masks), buffers]
        values += islice(arrays, 2) if digests else (None, None)
        return cls(*values)

    def slice(self, lo: int, hi: int) -> StepArrays:
        def part(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[lo:hi]
            return None if value is None else value.slice(lo, hi)

        return StepArrays(*[part(getattr(self, field.name)) for field in fields(self)])

    def clear_results(self, at: Index | list[int]) -> None:
        """Set rewards to 0, and ``terminated`` and ``truncated`` to False, as a reset does."""
        self.rewards[at] = 0
        self.terminated[at] = self.truncated[at] = False

    def clear(self) -> None:
        """Remove flags and infos that an earlier worker left in the memory."""
        for array in (self.terminated, self.truncated, self.pending):
            array[:] = False
        for infos in (self.infos, self.reset_infos):
            infos.kinds[:] = 0


def as_float32(rewards: NDArray[np.float64]) -> NDArray[np.float32]:
    """Cast rewards; values beyond float32's range become infinite."""
    try:
        return rewards.astype(_FLOAT32)
    except (RuntimeWarning, FloatingPointError):  # if overflows are set to raise
        with np.errstate(over="ignore"):  # not above: it costs more than the cast
            return rewards.astype(_FLOAT32)


def _plan(
    spaces: StepSpaces, num_envs: int, info_bytes: int, digests: bool
) -> tuple[SpaceLayout, SpaceLayout, SpaceLayout | None, list[ArraySpec]]:
    """Return the layouts of observations, actions and masks, and the places of all arrays."""
    observations, actions = SpaceLayout(spaces.observation_space), SpaceLayout(spaces.action_space)
    masks = mask_layout(spaces.action_space)
    if masks is not None and sum([math.prod(leaf.shape) for leaf in masks.leaves]) > info_bytes:
        masks = None  # too large for arrays
    flag, stored = np.dtype(np.bool_), observations.array_shapes(num_envs)
    arrays = [*stored, *stored, *actions.array_shapes(num_envs)]
    arrays.append((np.dtype(np.float64), (num_envs, *shape_of_rewards(spaces.reward_space))))
    arrays += 3 * [(flag, (num_envs,))] + 2 * list(InfoArrays.shapes(num_envs, info_bytes))
    arrays += [(flag, (num_envs, *leaf.shape)) for leaf in (masks.leaves if masks else ())]
    arrays += 2 * digests * [(np.dtype(np.uint64), (num_envs, len(stored)))]
    return observations, actions, masks, list(array_specs(arrays))
