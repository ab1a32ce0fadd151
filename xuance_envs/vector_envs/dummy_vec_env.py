"""Environments stepped one after the other in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from xuance_envs.engine.driver import LocalDriver, is_interrupt
from xuance_envs.engine.env_group import EnvGroup
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.errors import EnvError
from xuance_envs.vector_envs.arguments import checked_functions
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["DummyVecEnv"]

logger = logging.getLogger("xuance_envs")


class DummyVecEnv(VecEnv):
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

    Raises:
        EnvError: a callable raised, or what it returned is no environment.
        ValueError: there is no callable, or two of them returned the same object.
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

    _is_copied_by_forks = True

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        *,
        copy: bool = True,
        check_actions: bool = False,
    ) -> None:
        functions, keywords = checked_functions(env_fns, env_seed)
        group = self._group = EnvGroup(
            functions,
            keywords,
            0,
            copy_of,
            autoreset=self._autoreset,
            is_interrupt=is_interrupt,
        )
        try:
            description = self._common_description(group.describe())
            arrays = StepArrays.allocate(
                description.observation_space, description.action_space, len(functions)
            )
            group.attach(arrays)
        except BaseException:
            self.close_extras()
            raise
        super().__init__(
            [LocalDriver(group, 0)], description, arrays, copy=copy, check_actions=check_actions
        )

    @property
    def envs(self) -> list[Any]:
        """The environments, in a list of their own; empty once closed."""
        return list(self._group.envs)

    def close_extras(self) -> None:
        """See :class:`~xuance_envs.vector_envs.vector_env.VecEnv`."""
        try:
            self._group.close()
        except EnvError:
            logger.warning("an environment did not close", exc_info=True)
