"""Storage of the rewards that environments return: numbers, or vectors of one shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, fit
from xuance_envs.errors import invalid_reward

# Marker of a missing reward: a NaN whose bits no environment produces.
UNSTEPPED = np.array([0x7FF8_0000_0000_57E9], np.int64).view(np.float64)

_FLOAT = np.dtype(np.float64)
_FLOATS = "efd"


class _Numbers:
    zero: Any = 0.0

    def __init__(self, array: NDArray[np.float64]) -> None:
        self.target: Any = memoryview(array)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        self.unstepped = memoryview(UNSTEPPED.repeat(len(array)))  # type: ignore[arg-type]  # as above

    def put(self, i: int, reward: Any) -> None:
        if not isinstance(reward, np.ndarray):
            try:
                self.target[i] = reward
                return
            except (TypeError, ValueError):
                pass  # `fit_reward` raises an error with the reason
        self.target[i] = fit_reward(reward, ()).item()


class _Vectors:
    def __init__(self, array: NDArray[np.float64]) -> None:
        self._array = array
        self._shape = array.shape[1:]
        self.zero = np.zeros(self._shape)
        self.unstepped = UNSTEPPED.repeat(self._shape[0])

    @property
    def target(self) -> Any:
        return self

    def __setitem__(self, at: int | slice, reward: Any) -> None:
        if not (
            type(reward) is np.ndarray
            and reward.shape == self._shape
            and reward.dtype.char in _FLOATS
        ):
            reward = fit_reward(reward, self._shape)
        self._array[at] = reward

    put = __setitem__


# Rewards of a group. ``target[i] = reward`` stores a reward; if it raises, ``put(i, reward)``
# converts and stores it. ``target[:] = unstepped`` marks all rewards as missing.
Rewards = _Numbers | _Vectors


def rewards_of(array: NDArray[np.float64]) -> Rewards:
    """Return the storage for an array with one number or one vector per environment."""
    return _Numbers(array) if array.ndim == 1 else _Vectors(array)


def fit_reward(reward: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Convert a reward to float64; a number may also be given as an array with one element."""
    try:
        array = np.asarray(reward)
    except ValueError:
        array = np.empty(shape, object)  # `fit` raises an error with the reason
    else:
        if array.ndim:
            reward = array = array.reshape(()) if not shape and array.size == 1 else array
    if array.shape != shape:
        raise BadValueError(invalid_reward(array.shape, shape))
    try:
        return fit(reward, _FLOAT, shape)
    except BadValueError as error:
        raise BadValueError(f"invalid reward: {error}") from None


def as_python_values(rewards: NDArray[Any]) -> list[Any]:
    """Return a list of Python numbers, or of copied vectors."""
    return rewards.tolist() if rewards.ndim == 1 else list(rewards.copy())


def first_unstepped(rewards: NDArray[np.float64]) -> int | None:
    """Return the index of the first environment whose reward is missing."""
    first = np.ascontiguousarray(rewards.reshape(len(rewards), -1)[:, 0])
    unstepped = np.flatnonzero(first.view(np.int64) == UNSTEPPED.view(np.int64))
    return int(unstepped[0]) if len(unstepped) else None
