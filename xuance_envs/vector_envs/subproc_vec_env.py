"""Vectorized environments in worker processes."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs._override import Unpack
from xuance_envs.engine.cpus import affinity_cpus, available_cpus
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import common_description
from xuance_envs.engine.groups import Describe, WorkerGroups
from xuance_envs.engine.process.common_step import MIN_WORKERS, open_common_step
from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_diagnostics import REGION_BYTES
from xuance_envs.engine.process.worker_process import StartSettings
from xuance_envs.engine.system.library_threads import count_native_threads
from xuance_envs.errors import caller_stacklevel, counted
from xuance_envs.vector_envs.arguments import checked_recipe
from xuance_envs.vector_envs.grouped import GroupedVecEnv
from xuance_envs.vector_envs.options import InSeries, ProcessOptions, StartMethod
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.worker_settings import ProcessSettings

__all__ = ["SubprocVecEnv", "fork_hazard", "start_processes"]

__getattr__ = deprecated_aliases(__name__, danger_of_fork="fork_hazard")

logger = logging.getLogger("xuance_envs")

# Longest time in seconds that a process spins before it blocks. It exceeds a policy's forward pass
# (about 100 µs), so the worker still spins when the next step begins, and need not wake up.
SPIN = 500e-6

MIN_CPUS_TO_SHARE = 4  # with fewer, the main process spins only on a CPU without a worker


@with_options(ProcessOptions, ProcessSettings, GroupedVecEnv)
class SubprocVecEnv(GroupedVecEnv):
    """Vectorized environment in worker processes.

    Workers write their results into shared memory; a typical step pickles nothing.

    Workers do not import your script, so it needs no ``if __name__ == "__main__"`` guard. Objects
    defined in ``__main__`` are sent by value, so lambdas and local classes work.

    Args:
        env_fns: callables that create one environment each, in its worker.
        in_series: environments per worker. ``"auto"`` splits the environments evenly. It starts one
            worker per CPU available to this process, but not more workers than environments. With
            ``caller_steps``, the main process replaces one worker. Use 1 for environments that wait
            (for a network or an external simulator) or that share global state.
        context: start method of the workers: ``"spawn"``, ``"forkserver"`` or ``"fork"``.
            ``"fork"`` warns if forking is unsafe, for example after CUDA was initialized.
        caller_steps: True to step one share of the environments in the main process, while the
            workers step theirs.
        step_timeout: seconds a worker may take to answer a command, such as a step including
            resets; None for no limit. ``start_timeout`` limits the creation of the environments.
        on_worker_failure: response if a worker crashes or exceeds ``step_timeout``. ``"raise"``
            raises an error and closes the vec env. ``"restart"`` starts a new worker. The failed
            step truncates the episodes of the failed worker's environments: reward 0, the last
            known observation, and ``"worker_restarted"`` in the infos. ``"resume"`` saves the
            environments' states periodically. The new worker loads the last saved states and
            replays the steps since then, so no data is lost. If the replay diverges, the mode acts
            as ``"restart"``. No mode covers the main process's own share (``caller_steps``).
        worker_threads: threads that BLAS, OpenMP, torch and OpenCV may use in each worker; None to
            keep their settings. Forked workers keep this process's BLAS and OpenMP settings.
        pin_workers: True to pin each worker to its own CPU while the program makes more than 1,000
            vector steps per second. Workers are pinned only if there are exactly as many CPUs as
            processes that step environments.
        record_failures: folder for failure files; None to write none. A file is written after an
            exception, a crash or a timeout in a step, or after a NaN in an observation or reward.
            ``python -m xuance_envs replay FILE`` reproduces the failure. In the main process's
            share (``caller_steps``), only exceptions and NaNs are recorded.

    Attributes:
        n_remotes (int): number of workers.
        in_series (int): maximum number of environments per worker.

    Raises:
        EnvError: a callable raised, or did not return an environment.
        ValueError: ``env_fns`` is empty, two callables returned the same object, or an argument is
            out of range.
        TypeError: an entry of ``env_fns`` is not callable, does not accept ``env_seed``, or cannot
            be pickled.
        RuntimeError: the environments' spaces differ, or this process is daemonic.
        WorkerDiedError: a worker crashed while it created its environments.
        WorkerTimeoutError: a worker exceeded ``start_timeout``.
        MemoryError: too little memory for the shared arrays.
        OSError: a worker process could not be started.

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
        in_series: InSeries = "auto",
        *,
        context: StartMethod = "spawn",
        copy: bool = True,
        check_actions: bool = False,
        **options: Unpack[ProcessOptions],
    ) -> None:
        settings = ProcessSettings(in_series=in_series, context=context, **options)
        recipe = checked_recipe(env_fns, env_seed)
        groups = start_processes(recipe, settings, output_buffers=copy)
        self._backend = groups.backend
        self.in_series = max(driver.hi - driver.lo for driver in groups.drivers)
        self.n_remotes = len(groups.backend.workers)
        super().__init__(groups, copy=copy, check_actions=check_actions)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, in the order of their environments; empty once closed."""
        return tuple(driver.worker.pid for driver in self._backend.workers)


def start_processes(
    recipe: Recipe,
    settings: ProcessSettings,
    *,
    spin: float = SPIN,  # of the workers, if there are CPUs for it
    describe: Describe = common_description,
    on_backend_created: Callable[[ProcessBackend], None] | None = None,  # before workers start
    guarded: bool = False,  # when a worker ends, kill all processes that its environments started
    caller_busy: bool = False,  # the main process needs a CPU while the workers step
    event_loop_waits: bool = False,  # an event loop watches the workers and collects their replies
    output_buffers: bool = False,  # steps may return shared memory
) -> WorkerGroups:
    """Start worker processes, which create their environments."""
    caller_steps = settings.caller_steps
    _check_context(settings.context)
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            "cannot start workers, because this process is daemonic: use DummyVecEnv, or create "
            "this process with daemon=False"
        )
    split = settings.split(len(recipe), available_cpus(), own_share=caller_steps)
    own = split.pop() if caller_steps else None
    wakes_all = len(split) >= MIN_WORKERS and not event_loop_waits
    memory = SharedMemory(reserved=(len(split) + wakes_all) * REGION_BYTES)
    main_spin = SPIN if _main_process_may_spin(len(split)) and not event_loop_waits else 0.0
    common = None
    if wakes_all:
        codes_at = len(split) * REGION_BYTES
        common = open_common_step(memory, codes_at, len(split), main_spin, caller_steps)
    start_settings = StartSettings(
        multiprocessing.get_context(settings.context),
        memory,
        threads=settings.worker_threads,
        # More spinning processes than CPUs would slow each other down.
        spin=spin if len(split) + (caller_steps or caller_busy) <= available_cpus() else 0.0,
        main_spin=main_spin,
        expect_first_ready=caller_steps or event_loop_waits,
        timeout=settings.step_timeout,
        start_timeout=settings.start_timeout,
        guarded=guarded,
        common=common,
    )
    options = settings.pin_workers, caller_steps, settings.info_bytes, output_buffers
    backend = ProcessBackend(start_settings, split, recipe, *options)
    if on_backend_created is not None:
        on_backend_created(backend)
    groups = WorkerGroups(backend, own, describe, settings.restarts, settings.record_failures)
    here = " and in this process" if own else ""
    pids = [driver.worker.pid for driver in backend.workers]
    logger.info(
        "%s in %s (%s)%s: pids %s",
        *(counted(len(recipe), "environment"), counted(len(pids), "worker")),
        *(settings.context, here, pids),
    )
    return groups


def _main_process_may_spin(workers: int) -> bool:
    """Return whether the main process may spin while it waits for this many workers."""
    # A spinning process without a CPU of its own takes CPU time from a worker. On two CPUs, this
    # costs more than waking up late; on four, it costs less. Spinning would use up a CPU quota.
    cpus = available_cpus()
    return workers < cpus or workers == cpus == affinity_cpus() >= MIN_CPUS_TO_SHARE


def fork_hazard() -> str | None:
    """Return the reason why forking this process is unsafe, or None if none is known."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialized, and does not work in a forked process"
    if threading.active_count() > 1:
        return "other threads may hold locks for which a forked process would wait forever"
    if (threads := count_native_threads()) > 0:
        return (
            f"native libraries (such as PyTorch or OpenMP) run {counted(threads, 'thread')}, for "
            "which a forked process may wait forever"
        )
    return None


def _check_context(context: str) -> None:
    available = multiprocessing.get_all_start_methods()
    if context not in available:
        number = isinstance(context, int)
        hint = f"; did you mean num_workers={context}?" if number else ""
        raise ValueError(f"context: expected one of {available}, got {context!r}{hint}")
    if context == "fork" and (hazard := fork_hazard()) is not None:
        warnings.warn(
            f"context='fork' copies this process, but {hazard}; use 'spawn' or 'forkserver'",
            RuntimeWarning,
            stacklevel=caller_stacklevel(),
        )
