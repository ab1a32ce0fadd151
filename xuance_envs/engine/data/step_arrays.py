"""Arrays of one vector step, in private or shared memory.

A worker writes to its slice of these arrays, so an ordinary step pickles nothing.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import INFO_BYTES, InfoArrays
from xuance_envs.engine.data.mask_layout import mask_layout
from xuance_envs.engine.data.memory_layout import array_specs, round_up
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
        layouts = _Layouts.of(spaces)
        *_, (*_, end) = array_specs(_shapes(layouts, num_envs, info_bytes, digests))
        if not outputs:
            return end
        return round_up(end, mmap.PAGESIZE) + OutputBuffers.nbytes(layouts.observations, num_envs)

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
        layouts = _Layouts.of(spaces)
        observations, actions, _ = layouts
        masks = _masks(actions, info_bytes)
        specs = list(array_specs(_shapes(layouts, num_envs, info_bytes, digests)))
        if memory is None:
            memory = np.zeros(specs[-1][-1], np.uint8)  # unused pages take no memory
        arrays = iter(
            [
                np.frombuffer(memory, dtype, int(np.prod(shape)), start).reshape(shape)
                for dtype, shape, start, _ in specs
            ]
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
        return cls(
            rows(observations),
            rows(observations),
            rows(actions),
            next(arrays),
            next(arrays),
            next(arrays),
            next(arrays),
            InfoArrays(next(arrays), next(arrays), next(arrays)),
            InfoArrays(next(arrays), next(arrays), next(arrays)),
            None if masks is None else rows(masks),
            buffers,
            next(arrays) if digests else None,
            next(arrays) if digests else None,
        )

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


class _Layouts(NamedTuple):
    observations: SpaceLayout
    actions: SpaceLayout
    reward_shape: tuple[int, ...]

    @classmethod
    def of(cls, spaces: StepSpaces) -> _Layouts:
        observations, actions, rewards = spaces
        return cls(SpaceLayout(observations), SpaceLayout(actions), shape_of_rewards(rewards))


def _shapes(
    layouts: _Layouts, num_envs: int, info_bytes: int, digests: bool
) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    observations, actions, reward_shape = layouts
    for layout in (observations, observations, actions):
        for leaf in layout.leaves:
            if leaf.dtype is not None:
                yield leaf.dtype, (num_envs, *leaf.shape)
    yield np.dtype(np.float64), (num_envs, *reward_shape)
    for _ in range(3):
        yield np.dtype(np.bool_), (num_envs,)
    for _ in range(2):
        yield from InfoArrays.shapes(num_envs, info_bytes)
    masks = _masks(actions, info_bytes)
    for leaf in () if masks is None else masks.leaves:
        yield np.dtype(np.bool_), (num_envs, *leaf.shape)
    leaves = [leaf for leaf in layouts.observations.leaves if leaf.dtype is not None]
    for _ in range(2 * digests):
        yield np.dtype(np.uint64), (num_envs, len(leaves))


def _masks(actions: SpaceLayout, info_bytes: int) -> SpaceLayout | None:
    """Return the layout of action masks, or None if they are not stored in arrays."""
    layout = mask_layout(actions.space)
    if layout is None or sum([math.prod(leaf.shape) for leaf in layout.leaves]) > info_bytes:
        return None
    return layout
