"""Environments stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.groups import LocalGroups
from xuance_envs.vector_envs.arguments import checked_info_bytes, checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv

__all__ = ["DummyVecEnv"]


class DummyVecEnv(GroupedVecEnv):
    """Many environments in this process, stepped one after the other.

    It does everything :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` does,
    without a process: the one to debug with, and the faster one for a few cheap environments.

    Args:
        env_fns: callables that make one environment each.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``, and without
            arguments otherwise.
        copy: whether the arrays returned belong to the caller; otherwise they are read-only
            views that the next step overwrites.
        check_actions: whether every action is checked to be in its space.
        info_bytes: room for the arrays in each environment's info, in bytes; what does not find
            any is copied by itself, at every step.
        record_failures: a folder. An exception in a step, or a NaN in an observation or reward,
            then leaves a file in it, which ``python -m xuance_envs replay FILE`` makes happen
            again.

    Raises:
        EnvError: a callable raised, or what it returned is no environment.
        ValueError: there is no callable, two of them returned the same object, or an argument is
            out of its range.
        RuntimeError: the environments' spaces differ.

    Attributes:
        envs (list): the environments.

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
        recipe, room = checked_recipe(env_fns, env_seed), checked_info_bytes(info_bytes)
        groups = LocalGroups(recipe, info_bytes=room, record_failures=record_failures)
        self._local = groups
        super().__init__(groups, copy=copy, check_actions=check_actions)

    @property
    def envs(self) -> list[Any]:
        """The environments, in a list of their own; empty once closed."""
        return self._local.envs
