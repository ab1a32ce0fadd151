"""Drop-in replacements for Tianshou's vectorized environments: only the import changes.

The classes derive from Tianshou's classes of the same name. The documentation lists the
differences under "Migrating".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from xuance_envs._override import Unpack
from xuance_envs.compat.env_functions import registering
from xuance_envs.compat.gymnasium_interface import start_method
from xuance_envs.compat.tianshou_vector_env import TianshouVectorEnv, common_description, tianshou
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.groups import Groups, LocalGroups
from xuance_envs.vector_envs.options import InSeries, ProcessOptions, RayActorOptions
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv, start_actors
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv, start_processes
from xuance_envs.vector_envs.worker_settings import ProcessSettings, RaySettings

__all__ = ["DummyVectorEnv", "RayVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv"]


class DummyVectorEnv(TianshouVectorEnv, tianshou.DummyVectorEnv):  # type: ignore[misc]  # as above
    """Environments in the main process, in place of Tianshou's ``DummyVectorEnv``.

    Args:
        env_fns: callables that make one environment each.
        wait_num: number of environments that ``step`` waits for; None for all.
        timeout: seconds after which ``step`` returns the results of the ready environments. If none
            is ready, ``step`` waits for the first.
        as_objects: True to return observations and rewards unchanged, ignoring the spaces. This
            allows reward vectors without a ``reward_space``, and observations of different shapes.
            Always on for environments that are not a ``gymnasium.Env``, and for observation spaces
            other than Box, Discrete, MultiDiscrete and MultiBinary.

    Raises:
        ValueError: two callables returned the same environment, or an argument is out of range.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import DummyVectorEnv

            envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1], [0, 2])
    """

    _missing_attr_default = ()

    def _make_groups(self, recipe: Recipe) -> LocalGroups:
        return LocalGroups(recipe, common_description)


@with_options(ProcessOptions, DummyVectorEnv, SubprocVecEnv)
class SubprocVectorEnv(TianshouVectorEnv, tianshou.SubprocVectorEnv):  # type: ignore[misc]  # as above
    """Environments in worker processes, in place of Tianshou's ``SubprocVectorEnv``.

    Tianshou starts one process per environment. Here each worker steps several environments, and
    there is one worker per CPU by default. With ``wait_num`` or ``timeout``, the default is one
    worker per environment, so that slow environments do not delay others.

    Args:
        share_memory: no effect, because array observations always use shared memory.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, or a ``multiprocessing`` context. None
            selects Python's default, or ``"spawn"`` if the default is ``"fork"`` and forking is
            unsafe.
        in_series: environments per worker, or ``"auto"``; None for the default described above.
        **options: further arguments of
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import SubprocVectorEnv

            envs = SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, in_series=2)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: Any = None,
        *,
        as_objects: bool = False,
        in_series: InSeries | None = None,
        **options: Unpack[ProcessOptions],
    ) -> None:
        self._options = {"context": context, "in_series": in_series, **options}
        TianshouVectorEnv.__init__(self, env_fns, wait_num, timeout, as_objects=as_objects)

    def _make_groups(
        self, recipe: Recipe, context: Any, in_series: InSeries | None, **options: Any
    ) -> Groups:
        if not (context is None or isinstance(context, str)):
            context = context.get_start_method()
        options = self.split_options(in_series, options)
        return start_processes(
            replace(recipe, env_fns=registering(recipe.env_fns)),
            ProcessSettings(context=start_method(context), **options),
            describe=common_description,
            caller_busy=self.is_async,
        )


@with_options(None, SubprocVectorEnv)
class ShmemVectorEnv(SubprocVectorEnv, tianshou.ShmemVectorEnv):  # type: ignore[misc]  # as above
    """Another name for :class:`SubprocVectorEnv`, as in Tianshou.

    Example:
        .. code-block:: python

            import gymnasium
            from xuance_envs.compat.tianshou import ShmemVectorEnv

            envs = ShmemVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, wait_num=2)
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
    """


@with_options(RayActorOptions, DummyVectorEnv, RayVecEnv)
class RayVectorEnv(TianshouVectorEnv, tianshou.RayVectorEnv):  # type: ignore[misc]  # as above
    """Environments in Ray actors, in place of Tianshou's ``RayVectorEnv``.

    Args:
        env_fns: callables that make one environment each; they are called in the actors.
        in_series: environments per actor, or ``"auto"``. None means 1 with ``wait_num`` or
            ``timeout``, else ``"auto"``.
        num_cpus_per_worker: CPUs that an actor reserves in the cluster. None means 0 if each actor
            has one environment, as in Tianshou, else 1.
        **options: further arguments of
            :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`.

    Raises:
        ImportError: Ray is not installed.
        ValueError: an argument is out of range.

    Example:
        .. code-block:: python

            envs = RayVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, address="auto")
            observations, infos = envs.reset()
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        as_objects: bool = False,
        in_series: InSeries | None = None,
        num_cpus_per_worker: float | None = None,
        **options: Unpack[RayActorOptions],
    ) -> None:
        cpus = {} if num_cpus_per_worker is None else {"num_cpus_per_worker": num_cpus_per_worker}
        self._options = {"in_series": in_series, **cpus, **options}
        TianshouVectorEnv.__init__(self, env_fns, wait_num, timeout, as_objects=as_objects)

    def _make_groups(self, recipe: Recipe, in_series: InSeries | None, **options: Any) -> Groups:
        given = self.split_options(in_series, options)
        one_each = 1 in (given["in_series"], options.get("envs_per_worker"))
        # Each worker has its own actor, because workers that share an actor reply together.
        defaults = {
            "num_cpus_per_worker": 0.0 if one_each else 1.0,
            "actors": "core" if one_each else "auto",
        }
        return start_actors(recipe, RaySettings(**{**defaults, **given}), common_description)
