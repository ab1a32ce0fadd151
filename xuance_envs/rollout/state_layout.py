"""Conversion of observations to the agent's input: tensors with its dtype and axis order.

Dict and Tuple observations become dicts and tuples of tensors. This module handles them as lists
with one part per leaf of the space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import Leaf, SpaceLayout
from xuance_envs.rollout.transfer import Transfer
from xuance_envs.vector_envs.options import AutoBool

IMAGE_AXES = 3


@dataclass(frozen=True)
class _StateLeaf:
    observed: Leaf
    shape: tuple[int, ...]
    dtype: torch.dtype
    moved: bool
    """True if the channels are the first axis of the state, but the last of the observation."""
    limits: tuple[int, int] | None
    """Limits of an integer dtype that does not hold all values of the observation's dtype."""


class StateLayout:
    def __init__(
        self,
        space: Space[Any],
        state_dtype: torch.dtype,
        channels_first: AutoBool,
        transfer: Transfer,
        leading_axes: Sequence[int] = (),
    ) -> None:
        if channels_first not in (True, False, "auto"):
            raise ValueError(
                f"channels_first: expected True, False or 'auto', got {channels_first!r}"
            )
        layout = SpaceLayout(space)
        # Split an observation or a batch into its parts, and join parts.
        self.parts, self.whole = layout.flatten, layout.unflatten
        self._transfer = transfer
        leading_axes = leading_axes or [0] * len(layout.leaves)
        self._leaves = [
            _state_leaf(leaf, state_dtype, channels_first, layout.flat, before)
            for leaf, before in zip(layout.leaves, leading_axes, strict=True)
        ]
        if channels_first is True and not any(leaf.moved for leaf in self._leaves):
            raise ValueError(f"channels_first=True: expected images with three axes, got {space}")
        self.shape = self.whole([leaf.shape for leaf in self._leaves])

    def observed(self, observations: Any) -> list[Any]:
        """Split observations into parts; raise a ValueError if a state's dtype cannot hold them."""
        parts = self.parts(observations)
        for leaf, part in zip(self._leaves, parts, strict=True):
            if leaf.limits is not None:
                values, (low, high) = np.asarray(part), leaf.limits
                wrong = values[(values < low) | (values > high)]
                if wrong.size:
                    raise ValueError(
                        f"observations: expected values from {low} to {high}, because state_dtype "
                        f"is {leaf.dtype}, got {wrong[0]}"
                    )
        return parts

    def permute(self, observation: Any) -> Any:
        """Move the axes of an observation or a batch to a state's order."""
        pairs = zip(self.parts(observation), self._leaves, strict=True)
        return self.whole([_channels_first(part) if leaf.moved else part for part, leaf in pairs])

    def makers(self, *leading: int) -> list[Callable[[], torch.Tensor]]:
        """Return an allocator for each part: see `Transfer.maker`."""
        return [self._transfer.maker((*leading, *leaf.shape), leaf.dtype) for leaf in self._leaves]

    def stage(self, count: int) -> _StagingBuffer | None:
        """Return a staging buffer for ``count`` states; None on the CPU."""
        return (
            None if self._transfer.direct else _StagingBuffer(self._leaves, count, self._transfer)
        )

    def rows(self, parts: Sequence[torch.Tensor], stage: _StagingBuffer | None) -> list[StateSlot]:
        """Return a slot for each row of ``parts``; ``stage`` holds data until it is transferred."""
        tensors = list(zip(*(part.unbind() for part in parts), strict=True))
        staged: Any = None if stage is None else [stage.arrays] * len(tensors)
        rows = zip(tensors, staged or zip(*self._targets(parts), strict=True), strict=True)
        return [StateSlot(self.whole(row), target, row, stage) for row, target in rows]

    def new_row(self, count: int) -> StateSlot:
        stage = self.stage(count)
        tensors = [make() for make in self.makers(count)]
        targets = self._targets(tensors) if stage is None else stage.arrays
        return StateSlot(self.whole(tensors), targets, tensors, stage)

    def _targets(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        """Return views of tensors in the observations' axis order."""
        pairs = zip((tensor.numpy() for tensor in tensors), self._leaves, strict=True)
        return [np.moveaxis(a, -IMAGE_AXES, -1) if leaf.moved else a for a, leaf in pairs]


@dataclass(slots=True, eq=False)
class StateSlot:
    """Memory for a batch of states: observations are written to it, and the agent reads it."""

    states: Any
    _targets: Sequence[NDArray[Any]]
    _tensors: Sequence[torch.Tensor]
    _stage: _StagingBuffer | None

    def write(
        self, parts: Sequence[NDArray[Any]], replacements: Sequence[tuple[int, Any]] = ()
    ) -> None:
        """Write a batch of observations, with the parts of others in some places."""
        if self._stage is not None:
            self._stage.wait()
        for target, part in zip(self._targets, parts, strict=True):
            target[...] = part
        for place, replacement in replacements:
            for target, value in zip(self._targets, replacement, strict=True):
                target[place] = value
        if self._stage is not None:
            self._stage.send(self._tensors)

    def copy_from(self, states: Sequence[torch.Tensor]) -> None:
        for tensor, state in zip(self._tensors, states, strict=True):
            tensor.copy_(state)


class _StagingBuffer:
    """Host buffer for observations, which are cast and permuted on the device."""

    def __init__(self, leaves: Sequence[_StateLeaf], count: int, transfer: Transfer) -> None:
        self._transfer = transfer
        self._sent: torch.cuda.Event | None = None
        self.arrays: list[NDArray[Any]] = []
        self._copies: list[tuple[bool, torch.Tensor, torch.Tensor | None]] = []
        for leaf in leaves:
            # In the observations' dtype: for images, uint8 has a quarter of float32's bytes.
            dtype = _torch_dtype(leaf.observed.dtype) or leaf.dtype
            host = transfer.host_tensor((count, *leaf.observed.shape), dtype)
            converts = leaf.moved or dtype != leaf.dtype
            buffer = torch.empty_like(host, device=transfer.device) if converts else None
            self.arrays.append(host.numpy())
            self._copies.append((leaf.moved, host, buffer))

    def wait(self) -> None:
        self._transfer.wait(self._sent)

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Start copying the arrays to tensors on the device."""
        for (moved, host, buffer), tensor in zip(self._copies, tensors, strict=True):
            self._transfer.send(host, tensor if buffer is None else buffer)
            if buffer is not None:
                tensor.copy_(_channels_first(buffer) if moved else buffer)
        self._sent = self._transfer.mark()


def _state_leaf(
    leaf: Leaf, state_dtype: torch.dtype, channels_first: AutoBool, alone: bool, before: int
) -> _StateLeaf:
    if leaf.dtype is None:
        raise ValueError(
            f"observations{leaf.path}: expected a space with a fixed shape, which tensors require, "
            f"got {leaf.space}"
        )
    dtype, limits, numpy_dtype = state_dtype, None, _numpy_dtype(state_dtype)
    if numpy_dtype.kind != "f" and not np.can_cast(leaf.dtype, numpy_dtype, "safe"):
        low, high = limits = np.iinfo(numpy_dtype).min, np.iinfo(numpy_dtype).max
        box = leaf.space if isinstance(leaf.space, spaces.Box) and leaf.dtype.kind != "f" else None
        if box is None or box.low.min() < low or box.high.max() > high:
            if alone:
                raise ValueError(
                    f"state_dtype: expected a dtype that holds all values of {leaf.space}, "
                    f"got {state_dtype}"
                )
            dtype, limits = torch.float32, None
    leading, seen = leaf.shape[:before], leaf.shape[before:]
    moved = len(seen) == IMAGE_AXES and bool(channels_first)
    if channels_first == "auto" and moved:
        square = [seen[0] == seen[1], seen[1] == seen[2]]  # height and width are often equal
        moved = square[0] if square[0] != square[1] else 2 * seen[0] > min(seen[1:])
    shape = (*leading, seen[2], *seen[:2]) if moved else leaf.shape
    return _StateLeaf(leaf, shape, dtype, moved, limits)


def _channels_first(part: Any) -> Any:
    move: Any = torch.movedim if isinstance(part, torch.Tensor) else np.moveaxis
    return move(part, -1, -IMAGE_AXES)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "fiu":
        raise ValueError(f"state_dtype: expected a real dtype that NumPy supports, got {dtype}")
    return found


def _torch_dtype(dtype: np.dtype[Any] | None) -> torch.dtype | None:
    """Return torch's equivalent of a NumPy dtype; None if it has none."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):  # ValueError for a foreign byte order
        return None
