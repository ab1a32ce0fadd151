"""Encoding of replies within a size limit; upper bounds of their sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import Space

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.remote.wire.formats import WireFormat, dumps


class ReplyEncoder:
    """Encoder of replies; replies beyond the limit are refused."""

    def __init__(self, space: Space[Any], limit: int) -> None:
        self._limit = limit
        self._sizes = {WireFormat.MSGPACK: 0, WireFormat.JSON: 0}  # of one observation
        for leaf in SpaceLayout(space).leaves:
            if leaf.dtype is not None:
                count = math.prod(leaf.shape)
                self._sizes[WireFormat.MSGPACK] += count * leaf.dtype.itemsize
                self._sizes[WireFormat.JSON] += count * _max_json_chars(leaf.dtype)

    def encode(self, reply: Any, wire_format: WireFormat) -> bytes:
        try:
            return dumps(reply, wire_format, self._limit)
        except TooLargeError as error:
            raise RefusedError(413, "reply", str(error)) from None

    def check(self, size: int) -> None:
        if size > self._limit:
            raise RefusedError(413, "reply", str(TooLargeError(self._limit)))

    def max_bytes(self, count: int, wire_format: WireFormat) -> int:
        """Return the maximum encoded size of the fixed-shape parts of ``count`` observations."""
        return self._sizes[wire_format] * count


def _max_json_chars(dtype: np.dtype[Any]) -> int:
    """Return the maximum number of characters of a number in JSON, including a separator."""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return max(len(str(bounds.min)), len(str(bounds.max))) + 1
    return 6 if dtype.kind == "b" else 25


def is_rgb_image(frame: Any) -> bool:
    """Return whether the status page can show a rendered frame."""
    return (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
        and 0 < frame.size <= 4 * 2**20
    )
