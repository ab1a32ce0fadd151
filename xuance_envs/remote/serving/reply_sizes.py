"""How large answers can be, by what environments observe and render."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import Space

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.remote.wire.formats import WireFormat

__all__ = ["is_rgb_image", "max_observation_bytes"]


def max_observation_bytes(space: Space[Any]) -> dict[WireFormat, int]:
    """The most bytes that an observation takes in each form, objects in it aside."""
    raw = text = 0
    for leaf in SpaceLayout(space).leaves:
        if leaf.dtype is not None:
            count = math.prod(leaf.shape)
            raw += count * leaf.dtype.itemsize
            text += count * _max_json_chars(leaf.dtype)
    return {WireFormat.MSGPACK: raw, WireFormat.JSON: text}


def _max_json_chars(dtype: np.dtype[Any]) -> int:
    """The most characters of a number in JSON, with what separates it from the next."""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return max(len(str(bounds.min)), len(str(bounds.max))) + 1
    return 6 if dtype.kind == "b" else 25


def is_rgb_image(frame: Any) -> bool:
    """Whether something that was rendered can be shown on the status page."""
    return (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
        and 0 < frame.size <= 4 * 2**20
    )
