"""Environments in worker processes, each worker with a group of them."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.util import Finalize
from time import monotonic
from typing import Any

import numpy as np

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.driver import Driver, LocalDriver
from xuance_envs.engine.env_group import EnvGroup
from xuance_envs.engine.placement import Placement
from xuance_envs.engine.serialization import copy_of, dumps_for_worker
from xuance_envs.engine.shared_memory import SharedMemory
from xuance_envs.engine.single_env import EnvDescription, common_description
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.engine.worker_process import WorkerProcess, end_all
from xuance_envs.errors import EnvError, WorkerTimeoutError
from xuance_envs.vector_envs.arguments import checked_functions
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["SubprocVecEnv", "shares"]

logger = logging.getLogger("xuance_envs")

SPIN = 500e-6
"""The longest a process spins before it blocks, in seconds.

A policy's forward pass takes about 100 µs; a worker that slept through it would be woken late.
"""


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
        start_timeout: seconds the workers have to make their environments.
        worker_threads: threads BLAS, OpenMP, torch and OpenCV may use in each worker; None
            leaves them alone.
        check_actions: whether every action is checked to be in its space.
        pin_workers: workers may be kept on a CPU each, which is done where there is one CPU
            per process that steps, and only while steps take less than a millisecond.

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
        start_timeout: float = 120.0,
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
        if worker_threads is not None and worker_threads < 1:
            raise ValueError(f"worker_threads: expected at least 1 or None, got {worker_threads}")
        _check_context(context)
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "a daemonic process may not start processes: use DummyVecEnv in it, or make it "
                "with daemon=False"
            )
        split = shares(len(functions), in_series, available_cpus())
        own = split.pop() if caller_steps else None
        self._workers: list[WorkerProcess] = []
        self._group: EnvGroup | None = None
        # Not __del__: this also runs at the interpreter's exit, before multiprocessing waits
        # for the workers.
        self._end_workers = Finalize(self, end_all, args=(self._workers,), exitpriority=100)
        memory = SharedMemory()
        try:
            self._start_workers(split, functions, memory, context, worker_threads, own is not None)
            drivers, description = self._build(functions, keywords, own, start_timeout)
            arrays = self._attach(drivers, description, len(functions), memory)
        except BaseException:
            end_all(self._workers, patience=1.0)
            self.close_extras()
            raise
        finally:
            memory.close()
        super().__init__(drivers, description, arrays, copy=copy, check_actions=check_actions)
        pids = [worker.pid for worker in self._workers]
        self._placement = Placement(pids if pin_workers else (), own is not None, available_cpus())
        logger.info(
            "%d environments in %d workers (%s)%s: pids %s",
            self.num_envs,
            len(self._workers),
            context,
            " and in this process" if own else "",
            pids,
        )

    def _start_workers(
        self,
        split: Sequence[tuple[int, int]],
        functions: Sequence[Callable[..., Any]],
        memory: SharedMemory,
        context: str,
        threads: int | None,
        caller_steps: bool,
    ) -> None:
        cpus = available_cpus()
        # More spinning processes than CPUs would keep each other from working.
        fit = len(split) + caller_steps <= cpus
        caller_fits = len(split) + 1 <= cpus
        for lo, hi in split:
            worker = WorkerProcess(
                multiprocessing.get_context(context),
                lo,
                hi,
                memory.fd,
                threads=threads,
                spin=SPIN if fit else 0.0,
                own_spin=SPIN if caller_fits else 0.0,
                env_fns=functions[lo:hi] if context == "fork" else None,
            )
            self._workers.append(worker)

    def _build(
        self,
        functions: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
        own: tuple[int, int] | None,
        timeout: float,
    ) -> tuple[list[Driver], EnvDescription]:
        """Has every group make its environments, all at the same time."""
        deadline = monotonic() + timeout
        for worker in self._workers:
            lo, hi = worker.lo, worker.hi
            pickled = None if worker.inherits else _pickled(functions[lo:hi], lo)
            with _in_time(worker, timeout):
                worker.ask(0, worker.pack("build", pickled, keywords[lo:hi], lo), deadline)
        drivers: list[Driver] = [*self._workers]
        local: list[tuple[int, EnvDescription]] = []
        if own is not None:
            self._group = EnvGroup(functions[slice(*own)], keywords[slice(*own)], own[0], copy_of)
            drivers.append(LocalDriver(self._group, own[0]))
            local = self._group.describe()
        described: list[tuple[int, EnvDescription]] = []
        for worker in self._workers:
            with _in_time(worker, timeout):
                described += worker.result(deadline)
        return drivers, common_description(described + local)

    def _attach(
        self,
        drivers: Sequence[Driver],
        description: EnvDescription,
        num_envs: int,
        memory: SharedMemory,
    ) -> StepArrays:
        """Makes the arrays, and gives each group its slice of them."""
        spaces = description.observation_space, description.action_space
        memory.resize(StepArrays.nbytes(*spaces, num_envs))
        arrays = StepArrays.allocate(*spaces, num_envs, memory.map())
        for worker in self._workers:
            worker.ask(0, worker.pack("attach", spaces, num_envs, worker.lo, worker.hi))
        if self._group is not None:
            self._group.attach(arrays.slice(drivers[-1].lo, num_envs))
        for worker in self._workers:
            worker.result()
        return arrays

    def step_async(self, actions: Any) -> None:
        """See :class:`~xuance_envs.vector_envs.vector_env.VecEnv`."""
        if self._tag >= self._placement.due:
            self._placement.update(self._tag)
        super().step_async(actions)

    def close_extras(self) -> None:
        """See :class:`~xuance_envs.vector_envs.vector_env.VecEnv`."""
        self._end_workers()
        if self._group is not None:
            try:
                self._group.close()
            except EnvError:
                logger.warning("an environment did not close", exc_info=True)


def shares(num_envs: int, in_series: int | str, cpus: int) -> list[tuple[int, int]]:
    """Splits environments among processes.

    Args:
        num_envs: how many there are.
        in_series: how many a process takes, or ``"auto"`` for one process per CPU.
        cpus: how many CPUs there are.

    Returns:
        First index and index after the last of each share; sizes differ by at most one in
        ``"auto"``, and only the last is smaller otherwise.

    Raises:
        ValueError: ``in_series`` is neither ``"auto"`` nor at least 1.
    """
    if in_series == "auto":
        count = min(num_envs, cpus)
        bounds = [num_envs * k // count for k in range(count + 1)]
        return list(itertools.pairwise(bounds))
    if not isinstance(in_series, int | np.integer) or isinstance(in_series, bool) or in_series < 1:
        raise ValueError(f"in_series: expected 'auto' or an int of at least 1, got {in_series!r}")
    size = int(in_series)
    return [(lo, min(lo + size, num_envs)) for lo in range(0, num_envs, size)]


@contextmanager
def _in_time(worker: WorkerProcess, timeout: float) -> Iterator[None]:
    """Says which worker it was that took too long to make its environments."""
    try:
        yield
    except TimeoutError:
        envs = range(worker.lo, worker.hi)
        raise WorkerTimeoutError(envs, worker.pid, timeout, "construct") from None


def _check_context(context: str) -> None:
    available = multiprocessing.get_all_start_methods()
    if context not in available:
        raise ValueError(f"context: expected one of {available}, got {context!r}")
    if context != "fork":
        return
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        danger = "CUDA, which is initialised in it, does not work in a forked process"
    elif threading.active_count() > 1:
        danger = "its other threads may hold locks that a forked process then waits for for ever"
    else:
        return
    warnings.warn(
        f"context='fork' copies this process, but {danger}; 'spawn' or 'forkserver' are safe",
        RuntimeWarning,
        stacklevel=4,
    )


def _pickled(functions: Sequence[Callable[..., Any]], first: int) -> bytes:
    try:
        return dumps_for_worker(functions)
    except Exception as error:
        for i, function in enumerate(functions):
            try:
                dumps_for_worker(function)
            except Exception as own_error:
                raise TypeError(
                    f"env_fns[{first + i}] cannot be sent to a worker process, because it cannot "
                    f"be pickled: {own_error}. context='fork' does without pickling"
                ) from own_error
        raise TypeError(f"env_fns cannot be pickled: {error}") from error
