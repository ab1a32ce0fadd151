"""What comes of a step: of all environments, or of those that have answered."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_infos import StepInfos

__all__ = ["StepBatch", "StepResult"]

StepResult = tuple[Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], StepInfos]


class StepBatch(NamedTuple):
    """The environments that answered, k of them, in the order of ``env_ids``.

    Attributes:
        obs: ``(k, *obs_shape)``, as ``step`` returns them.
        rewards: ``(k,)`` float32; 0 after ``async_reset``.
        terminated: ``(k,)`` bool.
        truncated: ``(k,)`` bool.
        infos: a sequence of k dicts.
        env_ids: ``(k,)`` int, ascending: which environments they are.

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3) as envs:
        ...     envs.async_reset(seed=0)
        ...     batch = envs.recv(min_envs=3)
        >>> batch.env_ids, batch.obs.shape, batch.rewards
        (array([0, 1, 2]), (3, 4), array([0., 0., 0.], dtype=float32))
    """

    obs: Any
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: StepInfos
    env_ids: NDArray[np.intp]

    @property
    def action_masks(self) -> Any:
        """The masks of the actions that come next, ``(k, n)``, in a new array each time.

        See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.action_masks`: environments that give
        masks by their method are asked from its first call on.

        Raises:
            AttributeError: an environment has none.
            EnvError: an environment gave something else.
        """
        return self.infos.masks(self.infos)
