"""The arrays of one vector step, on private or on shared memory.

A worker sees its slice of the same arrays, so nothing has to be sent on an ordinary step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import INFO_BYTES, InfoArrays
from xuance_envs.engine.data.mask_layout import mask_layout
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows

__all__ = ["UNSTEPPED", "StepArrays", "as_float32", "first_unstepped"]

UNSTEPPED = np.array([0x7FF8_0000_0000_57E9], np.int64).view(np.float64)
"""A reward that is not there yet: a NaN that no environment returns, for its bits are odd."""

_ALIGNMENT = 64  # a cache line, so that two arrays never share one
_FLOAT32 = np.dtype(np.float32)  # which NumPy need not look up at each step


class StepArrays:
    """All arrays of one vector step."""

    def __init__(
        self,
        observations: SpaceRows,
        reset_observations: SpaceRows,
        actions: SpaceRows,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        pending: NDArray[np.bool_],
        infos: InfoArrays,
        reset_infos: InfoArrays,
        masks: SpaceRows | None,
    ) -> None:
        self.observations = observations
        self.reset_observations = reset_observations
        self.actions = actions
        self.rewards = rewards
        self.terminated = terminated
        self.truncated = truncated
        self.pending = pending
        self.infos = infos
        self.reset_infos = reset_infos
        self.masks = masks

    @staticmethod
    def nbytes(
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        info_bytes: int = INFO_BYTES,
    ) -> int:
        """Bytes of memory the arrays for so many environments take."""
        layouts = SpaceLayout(observation_space), SpaceLayout(action_space)
        ends = [end for *_, end in _array_specs(*layouts, num_envs, info_bytes)]
        return ends[-1]

    @classmethod
    def allocate(
        cls,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        memory: Any = None,
        info_bytes: int = INFO_BYTES,
    ) -> StepArrays:
        """Lays the arrays out."""
        observations, actions = SpaceLayout(observation_space), SpaceLayout(action_space)
        masks = _masks(actions, info_bytes)
        specs = list(_array_specs(observations, actions, num_envs, info_bytes))
        if memory is None:
            memory = bytearray(specs[-1][-1])
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
        )

    def slice(self, lo: int, hi: int) -> StepArrays:
        """The same arrays for environments ``lo`` to ``hi - 1`` only."""
        return StepArrays(
            self.observations.slice(lo, hi),
            self.reset_observations.slice(lo, hi),
            self.actions.slice(lo, hi),
            self.rewards[lo:hi],
            self.terminated[lo:hi],
            self.truncated[lo:hi],
            self.pending[lo:hi],
            self.infos.slice(lo, hi),
            self.reset_infos.slice(lo, hi),
            None if self.masks is None else self.masks.slice(lo, hi),
        )

    def clear(self) -> None:
        """Removes what somebody may have left in them who had them before."""
        for array in (self.terminated, self.truncated, self.pending):
            array[:] = False
        for infos in (self.infos, self.reset_infos):
            infos.kinds[:] = 0


def as_float32(rewards: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rewards in the dtype that callers are given; infinite where they are beyond its range."""
    try:
        return rewards.astype(_FLOAT32)
    except (RuntimeWarning, FloatingPointError):  # where NumPy's warning is made an error
        with np.errstate(over="ignore"):  # costs more than the cast
            return rewards.astype(_FLOAT32)


def first_unstepped(rewards: NDArray[np.float64]) -> int | None:
    """The first environment whose reward is not there yet; None if all are."""
    unstepped = np.flatnonzero(rewards.view(np.int64) == UNSTEPPED.view(np.int64))
    return int(unstepped[0]) if len(unstepped) else None


_ArraySpec = tuple[np.dtype[Any], tuple[int, ...], int, int]


def _array_specs(
    observations: SpaceLayout, actions: SpaceLayout, num_envs: int, info_bytes: int
) -> Iterator[_ArraySpec]:
    """Dtype, shape, first byte and end of every array, in the order they are laid out."""
    start = 0
    for dtype, shape in _shapes(observations, actions, num_envs, info_bytes):
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        yield dtype, shape, start, end
        start = -(-end // _ALIGNMENT) * _ALIGNMENT


def _shapes(
    observations: SpaceLayout, actions: SpaceLayout, num_envs: int, info_bytes: int
) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    for layout in (observations, observations, actions):
        for leaf in layout.leaves:
            if leaf.dtype is not None:
                yield leaf.dtype, (num_envs, *leaf.shape)
    yield np.dtype(np.float64), (num_envs,)
    for _ in range(3):
        yield np.dtype(np.bool_), (num_envs,)
    for _ in range(2):
        yield from InfoArrays.shapes(num_envs, info_bytes)
    masks = _masks(actions, info_bytes)
    for leaf in () if masks is None else masks.leaves:
        yield np.dtype(np.bool_), (num_envs, *leaf.shape)


def _masks(actions: SpaceLayout, info_bytes: int) -> SpaceLayout | None:
    """How masks of actions lie, if they are to lie in the arrays."""
    layout = mask_layout(actions.space)
    if layout is None or sum([math.prod(leaf.shape) for leaf in layout.leaves]) > info_bytes:
        return None
    return layout
