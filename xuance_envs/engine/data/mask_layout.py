"""Layout of action masks."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from xuance_envs.engine.data.space_layout import (
    BadValueError,
    SpaceLayout,
    describe,
    replace_leaves,
)
from xuance_envs.engine.data.space_rows import SpaceRows

MASK_KEYS = ("action_mask", "avail_actions")  # info keys of action masks, by precedence
MASK_METHOD = "action_masks"  # environment method for the mask, called if no info has one


def mask_layout(action_space: Space[Any]) -> SpaceLayout | None:
    """Return the layout of an action space's masks, or None if the space has no masks."""
    masks: dict[str, Space[Any]] = {}
    for leaf in SpaceLayout(action_space).leaves:
        width = mask_width(leaf.space)
        if isinstance(leaf.space, spaces.MultiBinary):
            width = 2 * int(np.prod(leaf.shape))
        if width is None:
            return None
        masks[leaf.path] = spaces.MultiBinary(width)
    return SpaceLayout(replace_leaves(action_space, masks))


def mask_width(space: Space[Any]) -> int | None:
    """Return the number of mask entries for a Discrete or MultiDiscrete space, else None."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else None


def mask_rows(layout: SpaceLayout, num_envs: int) -> SpaceRows:
    parts: list[Any] = [np.zeros((num_envs, *leaf.shape), np.bool_) for leaf in layout.leaves]
    return SpaceRows(layout, parts, num_envs)


def store_mask(rows: SpaceRows, i: int, mask: Any) -> None:
    """Store environment i's mask; each nonzero entry allows one action."""
    try:
        given = rows.layout.flatten(mask)
    except BadValueError as error:
        raise BadValueError(f"invalid action mask: {error}") from None
    for part, leaf, value in zip(rows.parts, rows.layout.leaves, given, strict=True):
        array = value if type(value) is np.ndarray else _array_of(value)
        if array is None or array.size != part.shape[1] or array.dtype.kind not in "biuf":
            raise BadValueError(
                f"invalid action mask{leaf.path}: expected {part.shape[1]} entries, all bools or "
                f"numbers, got {describe(value)}"
            )
        part[i] = array if array.ndim == 1 else array.ravel()


def _array_of(value: Any) -> Any:
    try:
        return np.asarray(value)
    except ValueError:  # ragged
        pass
    try:
        return np.concatenate([np.ravel(part) for part in value])
    except (TypeError, ValueError):
        return None
