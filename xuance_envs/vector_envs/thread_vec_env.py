"""Vectorized environments in threads of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from xuance_envs._override import Unpack
from xuance_envs.engine.cpus import available_cpus, gil_is_enabled
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import common_description
from xuance_envs.engine.groups import Describe, WorkerGroups
from xuance_envs.engine.thread.thread_backend import ThreadBackend
from xuance_envs.errors import counted
from xuance_envs.vector_envs.arguments import checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.options import InSeries, ThreadArguments
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.worker_settings import ThreadSettings

__all__ = ["ThreadVecEnv", "ThreadVecEnv_Gym", "start_threads"]

logger = logging.getLogger("xuance_envs")

MAX_AUTO_THREADS = 1024  # maximum number of threads with in_series="auto" and the GIL


@with_options(ThreadArguments, ThreadSettings, GroupedVecEnv)
class ThreadVecEnv(GroupedVecEnv):
    """Vectorized environment in threads of this process, also named ``ThreadVecEnv_Gym``.

    Use it for environments that wait, such as for a network, a language model or another simulator:
    threads start in milliseconds and need little memory. For environments that compute, threads
    help only in a free-threaded Python; otherwise, one thread at a time runs Python code.

    All operations on an environment run in the same thread. Its creation may run in another thread
    in two cases: only some environments are asynchronous (``reset`` and ``step`` are
    ``async def``), or any is and ``caller_steps`` is True. The environments share this process's
    working directory, environment variables, global random generators, warning filters and library
    threads. A crash in native code ends the process. A thread cannot be killed, so hanging
    environments cannot be restarted.

    Args:
        env_fns: callables that create one environment each, in its thread.
        in_series: environments per thread. ``"auto"`` starts one thread per environment, at most
            1024; in a free-threaded Python, one thread per CPU available to this process. All
            asynchronous environments share one thread.
        caller_steps: True to step one share of the environments in the calling thread, while the
            other threads step theirs.
        step_timeout: seconds a thread may take to answer a command, such as a step including
            resets; None for no limit. ``start_timeout`` limits the creation of the environments.
            After a timeout, the vec env is closed. The thread ends when its environment returns.
        on_worker_failure: only ``"raise"``, because a thread cannot be killed and restarted.
        worker_threads: only None, because all threads share this process's library threads.

    Attributes:
        in_series (int): environments in the largest group; a group is stepped together.

    Raises:
        EnvError: a callable raised, or did not return an environment.
        ValueError: ``env_fns`` is empty, two callables returned the same object, an argument is
            out of range, or an environment has the render mode ``"human"``.
        TypeError: an entry of ``env_fns`` is not callable, or does not accept ``env_seed``.
        RuntimeError: the environments' spaces differ, or too many threads are running.
        WorkerTimeoutError: a thread exceeded ``start_timeout``.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import ThreadVecEnv
        >>> with ThreadVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> obs.shape, rewards
        ((3, 4), array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        in_series: InSeries = "auto",
        *,
        copy: bool = True,
        check_actions: bool = False,
        **options: Unpack[ThreadArguments],
    ) -> None:
        settings = ThreadSettings(in_series=in_series, **options)
        groups = start_threads(checked_recipe(env_fns, env_seed), settings)
        self.in_series = max(driver.hi - driver.lo for driver in groups.drivers)
        super().__init__(groups, copy=copy, check_actions=check_actions)


ThreadVecEnv_Gym = ThreadVecEnv


def start_threads(
    recipe: Recipe, settings: ThreadSettings, *, describe: Describe = common_description
) -> WorkerGroups:
    """Start threads, which create their environments."""
    most = MAX_AUTO_THREADS if gil_is_enabled() else available_cpus()
    split = settings.split(len(recipe), most, own_share=settings.caller_steps)
    own = split.pop() if settings.caller_steps else None
    timeouts = settings.step_timeout, settings.start_timeout
    options = settings.info_bytes, timeouts, settings.is_split_automatically
    backend = ThreadBackend(split, recipe, *options)
    groups = WorkerGroups(backend, own, describe)
    here = " and in the calling thread" if own else ""
    threads = counted(len({worker.thread for worker in backend.workers}), "thread")
    logger.info("%s in %s%s", counted(len(recipe), "environment"), threads, here)
    return groups
