"""Shared memory buffers that a step returns as observations, so the main process copies nothing.

The main process chooses a free buffer before a step of all environments. At the end of its step,
each group copies its observations from the step arrays to this buffer, in parallel with the others.
The step then returns the buffer itself. The step arrays keep the latest observations, so users may
overwrite the returned buffer.

A buffer is free if no array refers to it. A forked process, or a worker that cannot be killed, must
not change arrays of the user. Before a fork, or if such a worker is left, the buffers therefore
become private memory (:meth:`OutputBuffers.detach`). Later steps copy the observations.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from xuance_envs.engine.data.buffer_pool import HAS_REFCOUNTS, MIN_POOLED_BYTES
from xuance_envs.engine.data.memory_layout import ArraySpec, array_specs, round_up
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.engine.system.current import system

NUM_BUFFERS = 3  # two that the user compares, and one being filled


class OutputBuffers:
    """All buffers, or a group's slice of each. A page before them stores which one is chosen."""

    def __init__(
        self, layout: SpaceLayout, num_envs: int, memory: Any, start: int, lo: int, hi: int
    ) -> None:
        self.slice = partial(OutputBuffers, layout, num_envs, memory, start)
        self._unflatten = layout.unflatten
        self._places, size = _places(layout, num_envs)
        begin, end = start + mmap.PAGESIZE, start + mmap.PAGESIZE + NUM_BUFFERS * size
        self._chosen = memoryview(memory)[start : start + 1]
        self._memory, self._begin = memoryview(memory)[begin:end], begin
        # Every array that a step returned refers to the whole buffer, and nothing else does.
        self._wholes = [np.frombuffer(memory, np.uint8, size, at) for at in range(begin, end, size)]
        self._free_count = sys.getrefcount(self._wholes[0])
        self._parts = [
            [
                np.ndarray(shape, dtype, memory, at + first)[lo:hi]
                for dtype, shape, first, _ in self._places
            ]
            for at in range(begin, end, size)
        ]

    @staticmethod
    def nbytes(layout: SpaceLayout, num_envs: int) -> int:
        return mmap.PAGESIZE + NUM_BUFFERS * _places(layout, num_envs)[1]

    @staticmethod
    def are_useful(layout: SpaceLayout, num_envs: int) -> bool:
        """Return whether buffers are possible for these observations and faster than copies."""
        if not HAS_REFCOUNTS or any(leaf.dtype is None for leaf in layout.leaves):
            return False
        return _places(layout, num_envs)[1] >= MIN_POOLED_BYTES

    # -- used by groups ---------------------------------------------------------------

    def fill(self, observations: SpaceRows) -> None:
        """Copy a group's observations to the chosen buffer."""
        if number := self._chosen[0]:
            for part, row in zip(self._parts[number - 1], observations.parts, strict=True):
                part[...] = row

    def discard(self) -> None:
        """Make the step return a copy of the step arrays, which changed after :meth:`fill`."""
        self._chosen[0] = 0

    # -- used by the main process -----------------------------------------------------

    def choose(self) -> None:
        """Choose a free buffer for the next step of all environments, if there is one."""
        wholes = self._wholes
        for i in range(len(wholes)):
            if sys.getrefcount(wholes[i]) == self._free_count:
                self._chosen[0] = i + 1
                return
        self._chosen[0] = 0

    def take(self, copy: Callable[[], Any]) -> Any:
        """Return the buffer that a step has filled; if there is none, return ``copy()``."""
        number, self._chosen[0] = self._chosen[0], 0
        if not number or not self._wholes:
            return copy()
        whole = self._wholes[number - 1]
        return self._unflatten(
            [whole[lo:hi].view(dtype).reshape(shape) for dtype, shape, lo, hi in self._places]
        )

    def detach(self, fd: int, start: int) -> None:
        """Stop using the buffers; make them private. The step arrays are at ``start`` in ``fd``."""
        self._wholes = []
        system.make_private(self._memory, fd, start + self._begin)


def _places(layout: SpaceLayout, num_envs: int) -> tuple[list[ArraySpec], int]:
    """Return the place of each leaf in a buffer, and the buffer's size."""
    places = list(array_specs(layout.array_shapes(num_envs)))
    return places, round_up(max([end for *_, end in places], default=0), mmap.PAGESIZE)
