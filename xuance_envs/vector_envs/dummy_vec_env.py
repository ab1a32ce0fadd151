"""Vectorized environments stepped in the main process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.groups import LocalGroups
from xuance_envs.vector_envs.arguments import checked_count, checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.signatures import with_options

__all__ = ["DummyVecEnv"]


@with_options(None, GroupedVecEnv)
class DummyVecEnv(GroupedVecEnv):
    """Vectorized environment that steps its environments one after another in this process.

    It returns the same results as :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`,
    without worker processes. Use it for debugging. For a few cheap environments, it is also faster.

    Args:
        env_fns: callables that create one environment each.
        record_failures: folder for failure files; None to write none. A file is written after an
            exception in a step, or after a NaN in an observation or reward.
            ``python -m xuance_envs replay FILE`` reproduces the failure.

    Attributes:
        envs (list): the environments.

    Raises:
        EnvError: a callable raised, or did not return an environment.
        ValueError: ``env_fns`` is empty, two callables returned the same object, or an argument is
            out of range.
        TypeError: an entry of ``env_fns`` is not callable, or does not accept ``env_seed``.
        RuntimeError: the environments' spaces differ.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import DummyVecEnv
        >>> with DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> obs.shape, rewards
        ((3, 4), array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        *,
        copy: bool = True,
        check_actions: bool = False,
        info_bytes: int = INFO_BYTES,
        record_failures: str | Path | None = None,
    ) -> None:
        hint = "SubprocVecEnv(env_fns, num_workers={})"
        recipe = checked_recipe(env_fns, env_seed, num_workers_hint=hint)
        size = checked_count("info_bytes", info_bytes, 0)
        self._local = LocalGroups(recipe, info_bytes=size, record_failures=record_failures)
        super().__init__(self._local, copy=copy, check_actions=check_actions)

    @property
    def envs(self) -> list[Any]:
        """The environments, in a new list; empty once closed."""
        return self._local.envs
