"""Transforms of rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import read_only
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.transforms.transform import Transform
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["ClipRewards", "RewardTransform", "ScaleRewards", "TransformRewards"]


class RewardTransform(Transform):
    """A transform of rewards: to derive from. Define :meth:`_rewarded`.

    Where an episode has just begun, there is no reward, and 0 stays 0.
    """

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        """The rewards ``(k,)`` float64, an array of their own, and the ``_state`` after them."""
        raise NotImplementedError

    def _transform(self, batch: Batch) -> Any:
        exact, state = self._rewarded(batch)
        if batch.began is not None:
            exact[batch.began] = 0
        rewards = as_float32(exact)
        batch.exact_rewards = exact
        batch.rewards = rewards if batch.rewards.flags.writeable else read_only(rewards)
        return state


class ClipRewards(RewardTransform):
    """Rewards kept within bounds.

    Args:
        vec_env: the vector environment.
        low: the least reward.
        high: the greatest.
        keep_raw: whether ``raw_observations`` are kept from the beginning.

    Raises:
        ValueError: ``low`` is not below ``high``.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import ClipRewards
        >>> envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> with ClipRewards(envs, high=0.5) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step([0, 1, 0])
        >>> rewards, envs.raw_rewards
        (array([0.5, 0.5, 0.5], dtype=float32), array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self, vec_env: VecEnv, low: float = -1.0, high: float = 1.0, *, keep_raw: bool = False
    ) -> None:
        if not low < high:
            raise ValueError(f"{type(self).__name__}: expected low < high, got {low} and {high}")
        super().__init__(vec_env, keep_raw=keep_raw)
        self._low, self._high = float(low), float(high)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        return np.clip(batch.given_rewards, self._low, self._high, dtype=np.float64), self._state


class ScaleRewards(RewardTransform):
    """Rewards times a number.

    Args:
        vec_env: the vector environment.
        scale: the number.
        keep_raw: whether ``raw_observations`` are kept from the beginning.

    Raises:
        ValueError: it is no finite number.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import ScaleRewards
        >>> with ScaleRewards(DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3), 0.1) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step([0, 1, 0])
        >>> rewards
        array([0.1, 0.1, 0.1], dtype=float32)
    """

    def __init__(self, vec_env: VecEnv, scale: float, *, keep_raw: bool = False) -> None:
        if not np.isfinite(scale):
            raise ValueError(f"{type(self).__name__}: scale: expected a number, got {scale!r}")
        super().__init__(vec_env, keep_raw=keep_raw)
        self._scale = float(scale)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        return np.multiply(batch.given_rewards, self._scale, dtype=np.float64), self._state


class TransformRewards(RewardTransform):
    """Rewards as a function makes them.

    Args:
        vec_env: the vector environment.
        function: called with the rewards ``(k,)`` of as many environments as there happen to be:
            float64 in a step of all, float32 in ``recv``. It returns as many, each made of its own
            alone.
        keep_raw: whether ``raw_observations`` are kept from the beginning.

    Raises:
        ValueError: it returned something else; from ``step`` and ``recv``.

    Example:
        >>> import numpy as np
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import TransformRewards
        >>> envs = DummyVecEnv([lambda: Gym_Env("Pendulum-v1")] * 3)
        >>> with TransformRewards(envs, np.sign) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step(np.zeros((3, 1), np.float32))
        >>> rewards
        array([-1., -1., -1.], dtype=float32)
    """

    def __init__(
        self,
        vec_env: VecEnv,
        function: Callable[[NDArray[Any]], Any],
        *,
        keep_raw: bool = False,
    ) -> None:
        super().__init__(vec_env, keep_raw=keep_raw)
        self._function = function

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        if batch.began is not None and batch.began.all():
            return np.zeros(len(batch.rewards)), self._state
        made = np.asarray(self._function(batch.given_rewards))
        if made.shape != batch.rewards.shape or made.dtype.kind not in "biuf":
            raise ValueError(
                f"{type(self).__name__}: expected {len(batch.rewards)} rewards from the function, "
                f"got an array of shape {made.shape} and dtype {made.dtype}"
            )
        return made.astype(np.float64), self._state
