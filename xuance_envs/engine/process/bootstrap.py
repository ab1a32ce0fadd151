"""Entry point of a worker process, which sets up the process before other imports.

Import nothing heavy here: BLAS and OpenMP read their thread counts when they are loaded, so they
must be loaded after the environment variables are set.
"""

from __future__ import annotations

import gc
import os
from multiprocessing import process

from xuance_envs.engine.process.settings import WorkerArguments
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


def start(settings: WorkerArguments) -> None:
    """Run a worker in this process until the main process ends it."""
    if settings.guarded:
        system.become_guardian()
    else:
        system.start_group()
    gc.freeze()  # objects inherited through a fork must not be collected here
    system.ignore_sigint()  # the main process handles it
    counters = () if settings.common is None else settings.common.counters
    # Do not pass these descriptors to processes that environments start.
    for passed in (settings.requests, settings.replies, settings.memory, *counters):
        system.set_inheritable(passed.fd, False)
    for name in list(os.environ):
        if name.startswith(_MPI_PREFIXES):
            del os.environ[name]
    if settings.threads is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(settings.threads)))
    # Environments may start processes, which multiprocessing forbids in a daemon.
    process.current_process().daemon = False

    from xuance_envs.engine.process.worker_diagnostics import start_recording

    # Start this before further imports, which may crash.
    recorder = start_recording(settings.memory.fd, settings.index)

    from xuance_envs.engine.process import worker

    worker.run(settings, recorder)
