"""Types of the results of ``step`` and ``recv``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_infos import StepInfos

__all__ = ["StepBatch", "StepResult"]

StepResult = tuple[Any, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], StepInfos]


class StepBatch(NamedTuple):
    """Results of k environments, in the order of ``env_ids``.

    Attributes:
        obs: ``(k, *obs_shape)``, in the form that ``step`` returns.
        rewards: ``(k,)`` float32, or ``(k, n)`` for vector rewards of n components; 0 after
            ``async_reset``.
        terminated: ``(k,)`` bool.
        truncated: ``(k,)`` bool.
        infos: sequence of k dicts.
        env_ids: ``(k,)`` int: indices of the environments, ascending.

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
        """Action masks for the next actions, ``(k, m)`` bool for m actions; new on each access.

        For Dict and Tuple spaces, they are a dict or tuple of such arrays.

        Masks from an environment's ``action_masks()`` method are available only after a first call
        of :meth:`VecEnv.action_masks() <xuance_envs.vector_envs.vector_env.VecEnv.action_masks>`.

        Raises:
            AttributeError: an environment has no action mask.
            EnvError: an environment returned an invalid mask.
        """
        return self.infos.masks(self.infos)
