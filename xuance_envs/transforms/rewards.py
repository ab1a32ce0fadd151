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
    """Base class for transforms of rewards; define :meth:`_rewarded`.

    Results of a reset have the reward 0, before and after the transform.

    Args:
        vec_env: the vector environment.
        keep_raw: True to keep ``raw_observations`` from the start.
    """

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        """Transform the rewards of a batch, ``batch.given_rewards``.

        Args:
            batch: results of one call.

        Returns:
            The rewards as a new float64 array ``(k,)``, and the next ``_state``.
        """
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
    """Clip rewards to bounds.

    Args:
        vec_env: the vector environment.
        low: smallest reward.
        high: largest reward.
        keep_raw: True to keep ``raw_observations`` from the start.

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
    """Multiply rewards by a constant.

    Args:
        vec_env: the vector environment.
        scale: the factor.
        keep_raw: True to keep ``raw_observations`` from the start.

    Raises:
        ValueError: ``scale`` is not finite.

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
            raise ValueError(
                f"{type(self).__name__}: scale: expected a finite number, got {scale!r}"
            )
        super().__init__(vec_env, keep_raw=keep_raw)
        self._scale = float(scale)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        return np.multiply(batch.given_rewards, self._scale, dtype=np.float64), self._state


class TransformRewards(RewardTransform):
    """Apply a function to rewards.

    Args:
        vec_env: the vector environment.
        function: called with the rewards ``(k,)`` of any number of environments: float64 from
            ``step``, float32 from ``recv``. Returns k numbers. Each must depend only on its own
            reward.
        keep_raw: True to keep ``raw_observations`` from the start, not only once they are read.

    Raises:
        ValueError: in ``step`` or ``recv``, the function did not return k numbers.

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
