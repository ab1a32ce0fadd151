"""Calls of Linux."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

assert sys.platform == "linux" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.cgroups import limits  # noqa: E402
from xuance_envs.engine.system.posix import *  # noqa: E402, F403
from xuance_envs.engine.system.posix import (  # noqa: E402
    above_stdio,
    open_temporary_file,
    start_group,
)

NAME = "Linux"

HAS_GUARDIANS = True  # a guardian process can kill all descendants of a worker
LIMITS_MEMORY = True  # the memory that a process allocates can be limited

KILL_SIGNAL = signal.SIGUSR1  # signal that makes a guardian kill its worker and all descendants

_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36

set_cpu_affinity = os.sched_setaffinity
close_end_watch = os.close


def cpu_affinity(pid: int = 0) -> set[int] | None:
    """Return the CPUs that a process may use; None on systems without CPU affinity."""
    return os.sched_getaffinity(pid)


def current_cpu_function() -> Callable[[], int] | None:
    """Return the C function that gives the calling thread's CPU, if available."""
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


def open_end_watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None if unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or not permitted
        return None


def open_counters(*semaphores: bool) -> tuple[int, ...] | None:
    """Open non-blocking event counters, optionally as semaphores; return None if unsupported."""
    counters: list[int] = []
    try:
        for semaphore in semaphores:
            flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK | (os.EFD_SEMAPHORE if semaphore else 0)
            counters.append(above_stdio(os.eventfd(0, flags)))
    except (AttributeError, OSError):  # an old C library, or not permitted
        for fd in counters:
            os.close(fd)
        return None
    return tuple(counters)


def watch_together(fds: Iterable[int]) -> select.epoll:
    """Return an epoll object, readable while any of ``fds`` is; its descriptor is above 2."""
    with select.epoll() as opened:
        watch = select.epoll.fromfd(above_stdio(os.dup(opened.fileno())))
    for fd in fds:
        watch.register(fd, select.EPOLLIN)
    return watch


def open_anonymous_file() -> int:
    """Open a file in memory; return its descriptor, which is above 2."""
    try:
        fd = os.memfd_create("xuance_envs")
    except (AttributeError, OSError):  # an old C library, or not permitted
        return open_temporary_file()
    return above_stdio(fd)


def reserve(fd: int, start: int, nbytes: int) -> None:
    """Extend a file to ``start + nbytes``, with memory for its last ``nbytes``."""
    os.posix_fallocate(fd, start, nbytes)


def reopen(fd: int) -> int | None:
    """Open a file again, with a position of its own; return None if that is not possible."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    except OSError:
        return None


def abort(pid: int) -> None:
    """End a process so that it writes a crash report, but no core file."""
    with suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    os.kill(pid, signal.SIGABRT)


def end_natively_after_main() -> None:
    """End this process after the main process, even if a thread never releases the GIL."""
    if signal_after_main(signal.SIGCONT) is None:  # continues this process if it is stopped
        return
    # SIGHUP fits best, but if it is ignored, as under nohup, it must stay ignored.
    hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    number = signal.SIGHUP if hangup else signal.SIGQUIT
    libc = ctypes.CDLL(None)
    # The signal calls C's alarm(number), so SIGALRM ends this process that many seconds later.
    libc.signal(int(number), libc.alarm)
    signal_after_main(number)


def count_threads(process: int | str = "self") -> int:
    """Return a process's number of threads, 0 if the system does not report it."""
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return 0


def kill_first_without_memory() -> None:
    """Let the kernel kill this process before others when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def limit_memory(nbytes: int) -> None:
    """Limit the memory that this process may allocate, unless a lower limit is set."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes that this process, and its control groups, can still allocate, or None."""
    available = limits("memory", {1: _left_v1, 2: _left_v2})
    with suppress(OSError, ValueError, IndexError):
        available += [1024 * kib for kib in _values(meminfo, "MemAvailable:")]
    return int(min(available)) if available else None


def _left(limit: str, usage: str, cached: str, folder: Path) -> float | None:
    """Return the bytes that a control group can allocate; the kernel drops cached files."""
    most = (folder / f"memory.{limit}").read_text().strip()
    if most == "max":
        return None
    used = int((folder / f"memory.{usage}").read_text())
    return int(most) - used + sum(_values(folder / "memory.stat", cached))


_left_v1 = partial(_left, "limit_in_bytes", "usage_in_bytes", "total_inactive_file")
_left_v2 = partial(_left, "max", "current", "inactive_file")


def _values(path: Path, name: str) -> list[int]:
    """Return the numbers that follow a name in the lines of a file."""
    lines = map(str.split, path.read_text().splitlines())
    return [int(line[1]) for line in lines if line[:1] == [name]]


# -- guardians ------------------------------------------------------------------------
#
# A guardian process kills all descendants of a worker after the worker's end.
#
# The started process forks: the child becomes the worker, and the parent becomes its guardian. As
# a subreaper, the guardian inherits all orphaned processes that the environments started. When
# the worker ends, the guardian kills these processes, and ends with the worker's exit code or
# signal. Signals for the worker are sent to the guardian. It forwards SIGTERM and SIGABRT
# unchanged, and KILL_SIGNAL as SIGKILL. Worker and guardian are in separate process groups.


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
    while (ended := os.waitpid(-1, 0))[0] != worker:
        pass
    with suppress(ChildProcessError):  # raised when no child is left
        while True:
            for pid in descendants(os.getpid(), parents()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    status = ended[1]
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
