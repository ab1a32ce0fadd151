"""Where a worker process starts: sets its surroundings up, and only then imports the rest.

Nothing heavy may be imported here: BLAS and OpenMP read their thread counts when they are
first loaded, which unpickling this module's function must not do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import process, reduction
from typing import Any

__all__ = ["THREAD_VARIABLES", "PassedFd", "WorkerSettings", "start"]

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


class PassedFd:
    """A descriptor that arrives open in a process it is passed to when that starts."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive_fd, (reduction.DupFd(self.fd),)


def _receive_fd(passed: Any) -> PassedFd:
    return PassedFd(passed.detach())


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is given when it starts.

    Attributes:
        requests: read end of the pipe its requests come through.
        replies: write end of the pipe its replies go to.
        memory: the shared memory the step's arrays will be on.
        reserved: bytes in front of that memory: the regions of all workers' black boxes.
        index: which of these regions is this worker's.
        threads: how many threads BLAS, OpenMP and the like may use in it; None leaves them be.
        spin: how long it may spin while it waits for a request, in seconds.
        env_fns: what makes its environments, for a forked process, which needs no pickling.
    """

    requests: PassedFd
    replies: PassedFd
    memory: PassedFd
    reserved: int
    index: int
    threads: int | None
    spin: float
    env_fns: Sequence[Callable[..., Any]] | None = None


def start(settings: WorkerSettings) -> None:
    """Runs a worker in this process, which exists for nothing else, until it is told to end."""
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
    process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]

    from xuance_envs.engine.black_box import record

    recorder = record(settings.memory.fd, settings.index)  # of a failing import, too

    from xuance_envs.engine import worker

    worker.run(settings, recorder)
