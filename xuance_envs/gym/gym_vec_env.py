"""XuanCe's names for vectorized Gymnasium environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from xuance_envs._override import Unpack
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.options import InSeries, StartMethod, SubprocOptions
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

__all__ = ["DummyVecEnv_Atari", "DummyVecEnv_Gym", "SubprocVecEnv_Atari", "SubprocVecEnv_Gym"]


@with_options(None, DummyVecEnv)
class DummyVecEnv_Gym(DummyVecEnv):
    """XuanCe's name for :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`.

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 2) as envs:
        ...     obs, infos = envs.reset(seed=0)
        >>> infos[0]
        {'episode_step': 0}
    """


@with_options(SubprocOptions, SubprocVecEnv)
class SubprocVecEnv_Gym(SubprocVecEnv):
    """:class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` with XuanCe's signature.

    The order of arguments differs: ``context`` comes second, and ``env_seed`` is keyword-only.

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
        context: StartMethod = "spawn",
        in_series: InSeries = "auto",
        *,
        env_seed: int | None = None,
        **options: Unpack[SubprocOptions],
    ) -> None:
        super().__init__(env_fns, env_seed, in_series, context=context, **options)


@with_options(None, DummyVecEnv)
class DummyVecEnv_Atari(DummyVecEnv_Gym):
    """XuanCe's name for :class:`~xuance_envs.gym.gym_vec_env.DummyVecEnv_Gym` with Atari games.

    Observations are uint8, as in :class:`~xuance_envs.gym.atari_env.Atari_Env`.

    Example:
        >>> from xuance_envs import Atari_Env, DummyVecEnv_Atari
        >>> with DummyVecEnv_Atari([lambda: Atari_Env("Pong", image_size=84)] * 2) as envs:
        ...     obs, infos = envs.reset(seed=0)
        >>> obs.shape, obs.dtype
        ((2, 84, 84, 4), dtype('uint8'))
    """


@with_options(SubprocOptions, SubprocVecEnv)
class SubprocVecEnv_Atari(SubprocVecEnv_Gym):
    """:class:`~xuance_envs.gym.gym_vec_env.SubprocVecEnv_Gym` for Atari games, as in XuanCe.

    ``env_seed`` comes second; all other options are keyword-only. Observations are uint8.
    :class:`~xuance_envs.gym.atari_env.Atari_Env` writes its frames directly into the memory that
    workers share with the main process.

    Example:
        >>> from xuance_envs import Atari_Env, SubprocVecEnv_Atari
        >>> with SubprocVecEnv_Atari([lambda: Atari_Env("Pong", image_size=84)] * 2) as envs:
        ...     obs, infos = envs.reset(seed=0)
        >>> obs.shape, obs.dtype
        ((2, 84, 84, 4), dtype('uint8'))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        *,
        context: StartMethod = "spawn",
        in_series: InSeries = "auto",
        **options: Unpack[SubprocOptions],
    ) -> None:
        super().__init__(env_fns, context, in_series, env_seed=env_seed, **options)
