"""Entry point of a worker process, which sets up the process before other imports.

Import nothing heavy here: BLAS and OpenMP read their thread counts when they are loaded, so they
must be loaded after the environment variables are set.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from multiprocessing import process
from typing import Any

from xuance_envs.engine.system.current import system

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)

_MPI_PREFIXES = ("OMPI_", "PMI_", "PMIX_")


class PassedFds(tuple[int, ...]):
    """File descriptors that are duplicated when they are pickled for a new process."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive_fds, tuple(map(system.pass_descriptor, self))


def _receive_fds(*passed: Any) -> PassedFds:
    return PassedFds(each.detach() for each in passed)


def start(
    fds: PassedFds,  # of the shared memory, requests, replies and the common wake-up's counters
    codes: tuple[int, int],  # offset in the shared memory and number of the common wake-up's codes
    index: int,
    threads: int | None,
    spin: float,
    guarded: bool,
    env_fns: Sequence[Callable[..., Any]],
) -> None:
    """Run a worker in this process until the main process ends it."""
    if guarded:
        system.become_guardian()
    else:
        system.start_group()
    gc.freeze()  # objects inherited through a fork must not be collected here
    system.ignore_sigint()  # the main process handles it
    # Do not pass these descriptors to processes that environments start.
    for fd in fds:
        system.set_inheritable(fd, False)
    for name in list(os.environ):
        if name.startswith(_MPI_PREFIXES):
            del os.environ[name]
    if threads is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    # Environments may start processes, which multiprocessing forbids in a daemon.
    process.current_process().daemon = False

    from xuance_envs.engine.process.worker_diagnostics import start_recording

    # Start this before further imports, which may crash.
    recorder = start_recording(fds[0], index)

    from xuance_envs.engine.process import worker

    worker.run(recorder, fds, codes, index, threads, spin, env_fns)
