"""Where a worker process starts: sets its surroundings up, and only then imports the rest.

Nothing heavy may be imported here: BLAS and OpenMP read their thread counts when they are
first loaded, which unpickling this module's function must not do.
"""

from __future__ import annotations

import gc
import os
import signal
from multiprocessing import process

from xuance_envs.engine.process.guardian import become_guardian
from xuance_envs.engine.process.settings import WorkerSettings

__all__ = ["THREAD_VARIABLES", "start"]

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


def start(settings: WorkerSettings) -> None:
    """Runs a worker in this process, which exists for nothing else, until it is told to end."""
    if settings.guarded:
        become_guardian()
    gc.freeze()  # what a fork brought along, with native code's objects, is not ours to collect
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for passed in (settings.requests, settings.replies, settings.memory):
        os.set_inheritable(passed.fd, False)  # not for what environments start
    for name in list(os.environ):
        if name.startswith(_MPI_PREFIXES):
            del os.environ[name]
    if settings.threads is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(settings.threads)))
    # An environment may start processes of its own, which multiprocessing denies to a daemon.
    process.current_process().daemon = False

    from xuance_envs.engine.process.worker_diagnostics import start_recording

    recorder = start_recording(settings.memory.fd, settings.index)  # of a failing import, too

    from xuance_envs.engine.process import worker

    worker.run(settings, recorder)
