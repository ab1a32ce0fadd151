"""Info arrays of a given number of environments."""

from __future__ import annotations

import numpy as np

from xuance_envs.engine.data.info_columns import INFO_BYTES, InfoArrays


def info_arrays(num_envs: int, info_bytes: int = INFO_BYTES) -> InfoArrays:
    """Return empty info arrays."""
    shapes = InfoArrays.shapes(num_envs, info_bytes)
    return InfoArrays(*(np.zeros(shape, dtype) for dtype, shape in shapes))
