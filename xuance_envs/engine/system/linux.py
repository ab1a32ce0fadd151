"""Calls of Linux."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

assert sys.platform == "linux" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.cgroups import limits  # noqa: E402
from xuance_envs.engine.system.guardian import KILL_SIGNAL as KILL_SIGNAL  # noqa: E402
from xuance_envs.engine.system.guardian import become_guardian as become_guardian  # noqa: E402
from xuance_envs.engine.system.guardian import signal_after_main  # noqa: E402
from xuance_envs.engine.system.posix import *  # noqa: E402, F403
from xuance_envs.engine.system.posix import above_stdio, open_temporary_file  # noqa: E402

NAME = "Linux"

HAS_GUARDIANS = True  # a guardian process can kill all descendants of a worker
LIMITS_MEMORY = True  # the memory that a process allocates can be limited

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
