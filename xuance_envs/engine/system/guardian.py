"""Guardian process, which kills all descendants of a worker after the worker's end.

The started process forks: the child becomes the worker, and the parent becomes its guardian. As
a subreaper, the guardian inherits all orphaned processes that the environments started. When
the worker ends, the guardian kills these processes, and ends with the worker's exit code or
signal. Signals for the worker are sent to the guardian. It forwards SIGTERM and SIGABRT
unchanged, and :data:`KILL_SIGNAL` as SIGKILL. Worker and guardian are in separate process groups.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

assert sys.platform == "linux" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.posix import start_group  # noqa: E402

KILL_SIGNAL = signal.SIGUSR1  # signal that makes a guardian kill its worker and all descendants

_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def become_guardian() -> None:
    """Turn this process into a guardian; return only in its child, the worker."""
    start_group()
    libc = ctypes.CDLL(None)
    forwarded = (signal.SIGTERM, signal.SIGABRT, KILL_SIGNAL)
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guardian = os.getpid()
    worker = os.fork()
    if worker:
        try:
            _guard(worker)
        finally:
            os._exit(1)
    libc.prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != guardian:
        os._exit(1)
    start_group()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)


def signal_after_main(number: int) -> int | None:
    """Make the kernel signal this process when the main process ends; return an fd to keep open."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return None
    try:  # Reopened, because processes that share an open file share the signal's target.
        end = os.open(f"/proc/self/fd/{parent.sentinel}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # some containers have no /proc
        return None
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, number)
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    return end


def _guard(worker: int) -> None:
    """Wait until the worker exits, kill its descendants, and exit with its exit code or signal."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kept = signal_after_main(signal.SIGCONT)  # continues this process if it is stopped
    if kept is not None:
        os.dup2(kept, 3)
    os.closerange(3 if kept is None else 4, os.sysconf("SC_OPEN_MAX"))

    def forward(number: int, _: object) -> None:
        with suppress(OSError):
            if number == signal.SIGABRT:  # report the crash, but write no core file
                resource.prlimit(worker, resource.RLIMIT_CORE, (0, 0))
            os.kill(worker, signal.SIGKILL if number == KILL_SIGNAL else number)

    for number in (signal.SIGTERM, signal.SIGABRT, KILL_SIGNAL):
        signal.signal(number, forward)
    for number in (signal.SIGINT, signal.SIGHUP):  # the main process handles these
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGABRT, KILL_SIGNAL))
    status = None
    while status is None:
        pid, ended = os.waitpid(-1, 0)
        if pid == worker:
            status = ended
    with suppress(ChildProcessError):  # raised when no child is left
        while True:
            for pid in descendants(os.getpid(), parents()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    if os.WIFSIGNALED(status):
        ending = os.WTERMSIG(status)
        if ending != signal.SIGKILL:
            signal.signal(ending, signal.SIG_DFL)
        os.kill(os.getpid(), ending)
    os._exit(os.WEXITSTATUS(status))


def parents() -> dict[int, int]:
    """Return the parent pid of every process on the system."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def descendants(pid: int, parent_of: dict[int, int]) -> Iterator[int]:
    """Return all direct and indirect children of a process."""
    for child, parent in parent_of.items():
        if parent == pid:
            yield child
            yield from descendants(child, parent_of)
