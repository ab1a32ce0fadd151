"""XuanCe's names for many Gym environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

__all__ = ["DummyVecEnv_Gym", "SubprocVecEnv_Gym"]


class DummyVecEnv_Gym(DummyVecEnv):
    """:class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv` by XuanCe's name.

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 2) as envs:
        ...     obs, infos = envs.reset(seed=0)
        >>> infos[0]
        {'episode_step': 0}
    """


class SubprocVecEnv_Gym(SubprocVecEnv):
    """:class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` as XuanCe calls it.

    It differs in the order of its first arguments: the start method comes second, and
    ``env_seed`` is given by keyword.

    Example:
        >>> from xuance_envs import Gym_Env, SubprocVecEnv_Gym
        >>> with SubprocVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 2) as envs:
        ...     obs, infos = envs.reset(seed=0)
        >>> infos[0]
        {'episode_step': 0}
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        context: str = "spawn",
        in_series: int | str = "auto",
        *,
        env_seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(env_fns, env_seed, in_series, context=context, **options)
