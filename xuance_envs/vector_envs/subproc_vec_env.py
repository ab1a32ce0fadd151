"""Environments in worker processes, each worker with a group of them."""

from __future__ import annotations

import logging
import multiprocessing
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xuance_envs.engine.cpus import affinity_cpus, available_cpus
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import common_description
from xuance_envs.engine.groups import Describe, WorkerGroups
from xuance_envs.engine.library_threads import count_native_threads
from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_diagnostics import REGION_BYTES
from xuance_envs.engine.process.worker_process import StartSettings
from xuance_envs.errors import caller_stacklevel
from xuance_envs.vector_envs.arguments import (
    checked_info_bytes,
    checked_positive,
    checked_recipe,
    checked_restarts,
    split_envs,
)
from xuance_envs.vector_envs.grouped import GroupedVecEnv

__all__ = ["SubprocVecEnv", "fork_hazard", "start_processes"]

logger = logging.getLogger("xuance_envs")

SPIN = 500e-6
"""The longest a process spins before it blocks, in seconds.

A policy's forward pass takes about 100 µs; a worker that slept through it would be woken late.
"""

MIN_CPUS_TO_SHARE = 4
"""The fewest of which a caller that spins may share one with a worker."""


class SubprocVecEnv(GroupedVecEnv):
    """Many environments in worker processes.

    Workers step their environments into memory they share with this process; on an ordinary
    step one byte goes each way. Trajectories are the same, bit for bit, as those of
    :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`, for environments that keep to
    their own random generators.

    Workers do not import the caller's ``__main__``: a script needs no main guard. What is
    defined in it reaches them by value, so lambdas and local classes work.

    Args:
        env_fns: callables that make one environment each, in the process where it will live.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``, and without
            arguments otherwise.
        in_series: environments per worker. ``"auto"`` makes as many workers as this process
            may use CPUs, and splits the environments evenly. 1 is for environments that wait
            (for a network, another simulator) or that share global state.
        context: how workers start: ``"spawn"``, ``"forkserver"`` or ``"fork"``.
        copy: whether the arrays returned belong to the caller; otherwise they are read-only
            views that the next step overwrites.
        caller_steps: this process keeps one share of the environments, and steps it while the
            workers step theirs.
        step_timeout: seconds a worker has to answer anything: a step of its environments with
            the resets that belong to it, a reset, a call. None lets it take any time.
        start_timeout: seconds the workers have to make their environments; None for any time.
        on_worker_failure: what happens when a worker ends by itself or takes too long.
            ``"raise"`` raises an error and closes; with ``"restart"`` another worker takes its
            place, and the step in which it was lost truncates the episodes of its environments:
            reward 0, the last known observation, ``infos[i]["worker_restarted"]``. With
            ``"resume"`` nothing is lost: the states of environments are saved now and then, and
            the other worker loads them, repeats the steps since, and does the one that was lost;
            only where that comes to something else, it is as with ``"restart"``. The caller's own
            share with ``caller_steps`` lives as long as this process.
        max_restarts: how many restarts there may be in all, before a failure raises; None for
            any number.
        restart_on_exception: whether an exception in an environment's ``step`` or ``reset`` is
            a failure of that kind, too.
        worker_threads: threads BLAS, OpenMP, torch and OpenCV may use in each worker; None
            leaves them alone. A forked worker has BLAS and OpenMP as this process loaded them.
        check_actions: whether every action is checked to be in its space.
        pin_workers: workers may be kept on a CPU each, which is done where there is one CPU
            per process that steps, and only while steps take less than a millisecond.
        record_failures: a folder. An exception in a step, the end of a worker in one, one that
            takes longer than ``step_timeout``, or a NaN in an observation or reward then leaves a
            file in it, which ``python -m xuance_envs replay FILE`` makes happen again. Of the
            caller's own share with ``caller_steps``, exceptions and NaNs do.
        info_bytes: room for the arrays in each environment's info, in bytes; what does not find
            any is pickled, at every step.

    Attributes:
        n_remotes (int): number of workers.
        in_series (int): environments of the largest share.

    Raises:
        EnvError: a callable raised, or what it returned is no environment.
        ValueError: there is no callable, two of them returned the same object, or an argument
            is out of its range.
        TypeError: a callable cannot be pickled.
        RuntimeError: the environments' spaces differ.
        WorkerDiedError: a worker ended while it made its environments.
        WorkerTimeoutError: a worker took longer than ``start_timeout``.
        MemoryError: there is too little memory for the shared arrays.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import SubprocVecEnv
        >>> with SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> obs.shape, rewards
        ((3, 4), array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        in_series: int | str = "auto",
        *,
        context: str = "spawn",
        copy: bool = True,
        caller_steps: bool = False,
        step_timeout: float | None = None,
        start_timeout: float | None = 120.0,
        on_worker_failure: str = "raise",
        max_restarts: int | None = 100,
        restart_on_exception: bool = False,
        worker_threads: int | None = 1,
        check_actions: bool = False,
        pin_workers: bool = True,
        record_failures: str | Path | None = None,
        info_bytes: int = INFO_BYTES,
    ) -> None:
        groups = start_processes(
            checked_recipe(env_fns, env_seed),
            in_series=in_series,
            context=context,
            caller_steps=caller_steps,
            step_timeout=step_timeout,
            start_timeout=start_timeout,
            on_worker_failure=on_worker_failure,
            max_restarts=max_restarts,
            restart_on_exception=restart_on_exception,
            worker_threads=worker_threads,
            pin_workers=pin_workers,
            record_failures=record_failures,
            info_bytes=info_bytes,
        )
        self._backend = groups.backend
        self.in_series = max(driver.hi - driver.lo for driver in groups.drivers)
        self.n_remotes = len(groups.backend.workers)
        super().__init__(groups, copy=copy, check_actions=check_actions)

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, in the order of their environments; none once closed."""
        return tuple(driver.worker.pid for driver in self._backend.workers)


def start_processes(  # noqa: D417  # the class says what the others are
    recipe: Recipe,
    *,
    in_series: int | str = "auto",
    context: str = "spawn",
    caller_steps: bool = False,
    step_timeout: float | None = None,
    start_timeout: float | None = 120.0,
    on_worker_failure: str = "raise",
    max_restarts: int | None = 100,
    restart_on_exception: bool = False,
    worker_threads: int | None = 1,
    pin_workers: bool = True,
    record_failures: str | Path | None = None,
    info_bytes: int = INFO_BYTES,
    spin: float = SPIN,
    describe: Describe = common_description,
    on_backend_created: Callable[[ProcessBackend], None] | None = None,
    guarded: bool = False,
    caller_busy: bool = False,
    event_loop_waits: bool = False,
) -> WorkerGroups:
    """Starts worker processes, which make their environments.

    What is not said here is as for :class:`SubprocVecEnv`.

    Args:
        recipe: what they are made from, and when they are reset.
        spin: the longest a worker spins before it blocks, in seconds, where there are CPUs for it.
        describe: makes one description of the environments'.
        prepared: is given the workers' backend before it starts them.
        guarded: whether all that the environments start ends with them, where the system can.
        caller_busy: whether this process is at work while they step, so that it needs a CPU, too.
        event_loop_waits: whether this process watches their descriptors by itself, and asks for what
            has come.
    """
    if not hasattr(select, "poll"):
        raise RuntimeError(
            "worker processes need select.poll, which this system does not have: use DummyVecEnv"
        )
    checked_positive(
        worker_threads=worker_threads, step_timeout=step_timeout, start_timeout=start_timeout
    )
    info_bytes = checked_info_bytes(info_bytes)
    restarts = checked_restarts(on_worker_failure, max_restarts, restart_on_exception)
    _check_context(context)
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            "a daemonic process may not start processes: use DummyVecEnv in it, or make it "
            "with daemon=False"
        )
    split = split_envs(len(recipe), in_series, available_cpus())
    own = split.pop() if caller_steps else None
    settings = StartSettings(
        multiprocessing.get_context(context),
        SharedMemory(reserved=len(split) * REGION_BYTES),
        threads=worker_threads,
        # More spinning processes than CPUs would keep each other from working.
        spin=spin if len(split) + (caller_steps or caller_busy) <= available_cpus() else 0.0,
        main_spin=SPIN if _main_process_may_spin(len(split)) and not event_loop_waits else 0.0,
        expect_first_ready=caller_steps or event_loop_waits,
        timeout=step_timeout,
        start_timeout=start_timeout,
        guarded=guarded,
    )
    backend = ProcessBackend(settings, split, recipe, pin_workers, caller_steps, info_bytes)
    if on_backend_created is not None:
        on_backend_created(backend)
    groups = WorkerGroups(backend, own, describe, restarts, record_failures)
    where = " and in this process" if own else ""
    pids = [driver.worker.pid for driver in backend.workers]
    logger.info(
        "%d environments in %d workers (%s)%s: pids %s",
        len(recipe),
        len(pids),
        context,
        where,
        pids,
    )
    return groups


def _main_process_may_spin(workers: int) -> bool:
    """Whether this process may spin while it waits for so many workers.

    Without a CPU of its own it takes the time between two yields from one of theirs. Of two that
    costs more than being woken late; of four it costs less, and of eight it saves a quarter of a
    quick step. Where time is limited, and not CPUs, it would use up that of all.
    """
    cpus = available_cpus()
    return workers < cpus or workers == cpus == affinity_cpus() >= MIN_CPUS_TO_SHARE


def fork_hazard() -> str | None:
    """What may go wrong in a copy of this process, None if nothing is known to."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA, which is initialised in it, does not work in a forked process"
    if threading.active_count() > 1:
        return "its other threads may hold locks that a forked process then waits for for ever"
    if (threads := count_native_threads()) > 0:
        return (
            f"threads of native libraries (OpenCV, OpenMP or the like: {threads}) do not come "
            "along, and a forked process that uses these libraries may wait for them for ever"
        )
    return None


def _check_context(context: str) -> None:
    available = multiprocessing.get_all_start_methods()
    if context not in available:
        raise ValueError(f"context: expected one of {available}, got {context!r}")
    if context == "fork" and (danger := fork_hazard()) is not None:
        warnings.warn(
            f"context='fork' copies this process, but {danger}; 'spawn' or 'forkserver' are safe",
            RuntimeWarning,
            stacklevel=caller_stacklevel(),
        )
