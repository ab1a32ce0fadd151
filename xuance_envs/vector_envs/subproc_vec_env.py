"""Environments in worker processes, each worker with a group of them."""

from __future__ import annotations

import logging
import multiprocessing
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

from xuance_envs.engine.black_box import REGION
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.driver import Driver, LocalDriver, is_interrupt
from xuance_envs.engine.env_group import EnvGroup
from xuance_envs.engine.library_threads import threads_beside_python
from xuance_envs.engine.placement import Placement
from xuance_envs.engine.process_end import end_all
from xuance_envs.engine.restarts import RestartingWorker, Restarts
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.shared_memory import SharedMemory
from xuance_envs.engine.single_env import EnvDescription
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.engine.waiting import PolledWaiter
from xuance_envs.engine.worker_process import StartSettings, WorkerProcess
from xuance_envs.engine.workers import Workers
from xuance_envs.errors import EnvError
from xuance_envs.vector_envs.arguments import (
    checked_functions,
    checked_positive,
    checked_restarts,
    shares,
)
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["SubprocVecEnv", "danger_of_fork"]

logger = logging.getLogger("xuance_envs")

SPIN = 500e-6
"""The longest a process spins before it blocks, in seconds.

A policy's forward pass takes about 100 µs; a worker that slept through it would be woken late.
"""


HURRY = 1.0
"""Seconds the workers have to close their environments when nobody asked them to: after Ctrl-C, at
the interpreter's exit, or when they are forgotten."""


class SubprocVecEnv(VecEnv):
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
            reward 0, the last known observation, ``infos[i]["worker_restarted"]``. The
            caller's own share with ``caller_steps`` is not covered.
        max_restarts: how many restarts there may be in all, before a failure raises; None for
            any number.
        restart_on_exception: whether an exception in an environment's ``step`` or ``reset`` is
            a failure of that kind, too.
        worker_threads: threads BLAS, OpenMP, torch and OpenCV may use in each worker; None
            leaves them alone. A forked worker has BLAS and OpenMP as this process loaded them.
        check_actions: whether every action is checked to be in its space.
        pin_workers: workers may be kept on a CPU each, which is done where there is one CPU
            per process that steps, and only while steps take less than a millisecond.

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

    _spin = SPIN

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
    ) -> None:
        functions, keywords = checked_functions(env_fns, env_seed)
        if not hasattr(select, "poll"):
            raise RuntimeError(
                "worker processes need select.poll, which this system does not "
                "have: use DummyVecEnv"
            )
        checked_positive(
            worker_threads=worker_threads, step_timeout=step_timeout, start_timeout=start_timeout
        )
        restarts = checked_restarts(on_worker_failure, max_restarts, restart_on_exception)
        _check_context(context)
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "a daemonic process may not start processes: use DummyVecEnv in it, or make it "
                "with daemon=False"
            )
        split = shares(len(functions), in_series, available_cpus())
        self.in_series = max(hi - lo for lo, hi in split)
        own = split.pop() if caller_steps else None
        self.n_remotes = len(split)
        spinning = len(split) + (own is not None)
        settings = StartSettings(
            multiprocessing.get_context(context),
            SharedMemory(reserved=len(split) * REGION),
            threads=worker_threads,
            # More spinning processes than CPUs would keep each other from working.
            spin=self._spin if spinning <= available_cpus() else 0.0,
            own_spin=SPIN if len(split) + 1 <= available_cpus() else 0.0,
            timeout=step_timeout,
            start_timeout=start_timeout,
            autoreset=self._autoreset,
        )
        self._group: EnvGroup | None = None
        self._workers = Workers(settings, split, functions, keywords)
        processes = self._workers.processes
        # Not __del__: this also runs at the interpreter's exit, before multiprocessing waits
        # for the workers.
        self._end = Finalize(self, _end, args=(processes, settings.memory), exitpriority=100)
        try:
            description = self._build(own, functions, keywords)
            arrays = self._attach(description, settings.memory, len(functions), own)
        except BaseException:
            end_all(processes, HURRY)
            self.close_extras()
            raise
        pids = [worker.pid for worker in processes]
        self._placement = Placement(pids if pin_workers else (), own is not None, available_cpus())
        drivers = self._drivers_of(keywords, arrays, restarts)
        super().__init__(
            drivers,
            description,
            arrays,
            copy=copy,
            check_actions=check_actions,
            waiter=PolledWaiter(drivers, settings.own_spin),
        )
        where = " and in this process" if own else ""
        logger.info(
            "%d environments in %d workers (%s)%s: pids %s",
            self.num_envs,
            len(pids),
            context,
            where,
            pids,
        )

    def _build(
        self,
        own: tuple[int, int] | None,
        functions: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
    ) -> EnvDescription:
        """Has every group make its environments, all at the same time."""
        self._workers.start()
        self._workers.build()
        local: list[tuple[int, EnvDescription]] = []
        if own is not None:
            mine = slice(*own)
            self._group = EnvGroup(
                functions[mine],
                keywords[mine],
                own[0],
                copy_of,
                autoreset=self._autoreset,
                is_interrupt=is_interrupt,
            )
            local = self._group.describe()
        return self._common_description(self._workers.descriptions() + local)

    def _attach(
        self,
        description: EnvDescription,
        memory: SharedMemory,
        num_envs: int,
        own: tuple[int, int] | None,
    ) -> StepArrays:
        """Makes the arrays, and gives each group its slice of them."""
        spaces = description.observation_space, description.action_space
        memory.resize(StepArrays.nbytes(*spaces, num_envs))
        arrays = StepArrays.allocate(*spaces, num_envs, memory.map())
        self._workers.attach(spaces, arrays)
        if self._group is not None and own is not None:
            self._group.attach(arrays.slice(*own))
        return arrays

    def _drivers_of(
        self, keywords: Sequence[Mapping[str, Any]], arrays: StepArrays, restarts: Restarts | None
    ) -> list[Driver]:
        drivers: list[Driver] = [*self._workers.processes]
        if restarts is not None:
            drivers = [
                RestartingWorker(
                    self._workers,
                    worker.index,
                    keywords[worker.lo : worker.hi],
                    arrays.slice(worker.lo, worker.hi),
                    restarts,
                    partial(_placed_anew, self._placement, self._workers),
                )
                for worker in self._workers.processes
            ]
        if self._group is not None:
            drivers.append(LocalDriver(self._group, drivers[-1].hi if drivers else 0))
        return drivers

    def step_async(self, actions: Any) -> None:
        """See :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step_async`."""
        if self._tag >= self._placement.due and not self.closed:
            self._placement.update(self._tag)
        super().step_async(actions)

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, in the order of their environments; none once closed."""
        return tuple(worker.pid for worker in self._workers.processes)

    def close_extras(self) -> None:
        """See :class:`~xuance_envs.vector_envs.vector_env.VecEnv`."""
        try:
            if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                end_all(self._workers.processes)
        finally:
            self._end()
        if self._group is not None:
            try:
                self._group.close()
            except EnvError:
                logger.warning("an environment did not close", exc_info=True)


def _end(processes: list[WorkerProcess], memory: SharedMemory) -> None:
    try:
        end_all(processes, patience=HURRY)
    finally:
        memory.close()


def danger_of_fork() -> str | None:
    """What may go wrong in a copy of this process, None if nothing is known to."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA, which is initialised in it, does not work in a forked process"
    if threading.active_count() > 1:
        return "its other threads may hold locks that a forked process then waits for for ever"
    if (threads := threads_beside_python()) > 0:
        return (
            f"threads of native libraries (OpenCV, OpenMP or the like: {threads}) do not come "
            "along, and a forked process that uses these libraries may wait for them for ever"
        )
    return None


def _check_context(context: str) -> None:
    available = multiprocessing.get_all_start_methods()
    if context not in available:
        raise ValueError(f"context: expected one of {available}, got {context!r}")
    if context == "fork" and (danger := danger_of_fork()) is not None:
        warnings.warn(
            f"context='fork' copies this process, but {danger}; 'spawn' or 'forkserver' are safe",
            RuntimeWarning,
            stacklevel=4,
        )


def _placed_anew(placement: Placement, workers: Workers, index: int) -> None:
    placement.replace(index, workers.processes[index].pid)
