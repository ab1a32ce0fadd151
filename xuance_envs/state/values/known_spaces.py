"""Spaces as they were when a state plan was created; a state's description has their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np

from xuance_envs.state.mujoco_memory import memcmp
from xuance_envs.state.rebuild import address_of

_BOUNDS = "low", "high"
_MAX_JOINED = 1 << 12
"""Bytes of an array up to which it is fastest to compare it with others, joined."""


class KnownSpaces:
    """Attributes of spaces, and the content of their arrays."""

    def __init__(self, spaces: Sequence[Any]) -> None:
        self._attributes = [(vars(space), dict(vars(space))) for space in spaces]
        arrays = [
            (name, value.reshape(-1).view(np.uint8))
            for _, known in self._attributes
            for name, value in known.items()
            if isinstance(value, np.ndarray)
            and value.flags.c_contiguous
            and not value.dtype.hasobject
        ]
        self._small = [each.data for _, each in arrays if each.nbytes <= _MAX_JOINED]
        self._small_content = b"".join(self._small)
        # A large space's other arrays follow from these two.
        large = [each for name, each in arrays if each.nbytes > _MAX_JOINED and name in _BOUNDS]
        self._copies = [each.copy() for each in large]
        self._large = [
            (address_of(each), address_of(copy), each.nbytes)
            for each, copy in zip(large, self._copies, strict=True)
        ]

    def are_current(self) -> bool:
        """Return whether nothing has changed, except for the generators."""
        try:
            for current, known in self._attributes:
                known["_np_random"] = current["_np_random"]
                if current != known:
                    return False
        except ValueError:  # an array was replaced
            return False
        if b"".join(self._small) != self._small_content:
            return False
        return not (self._large and any(starmap(memcmp, self._large)))
