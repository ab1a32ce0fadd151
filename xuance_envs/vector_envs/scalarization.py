"""Linear scalarization of vector rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

from xuance_envs.errors import counted


def checked_weights(name: str, weights: ArrayLike, reward_space: Box | None) -> NDArray[np.float64]:
    """Return the weights ``(k,)`` of rewards in this space, as a new array."""
    if reward_space is None:
        raise ValueError(
            f"{name}: expected vector rewards, but the rewards are numbers (reward_space is None)"
        )
    try:
        found = np.array(weights, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: weights: expected numbers, got {weights!r}") from None
    if found.shape != reward_space.shape or not np.isfinite(found).all():
        raise ValueError(
            f"{name}: weights: expected {counted(reward_space.shape[0], 'finite number')}, one per "
            f"component of the reward, got {weights!r}"
        )
    return found


def weighted_sum(rewards: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sums of vectors ``(..., k)``, bitwise equal for every batch size."""
    total: NDArray[np.float64] = np.multiply(rewards, weights, dtype=np.float64).sum(axis=-1)
    return total
