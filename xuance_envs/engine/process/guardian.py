"""A worker whose process ends with all that its environments started, however it ends.

The process that was started splits in two. The worker goes on in a child of it, and what remains,
the guardian, waits for the worker's end. What environments fork or start, and whatever that starts
in turn, is the guardian's once its own parent has ended: the kernel gives it there. So when the
worker is gone, by itself, by a signal, or because its caller was killed, the guardian ends the
rest, and then itself in the way the worker did.

Who ends a guarded worker signals the guardian, which passes it on: SIGTERM and SIGABRT as they are,
and :data:`KILL_SIGNAL` as SIGKILL. The guardian itself is never killed as long as it answers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

__all__ = ["KILL_SIGNAL", "SUPPORTED", "become_guardian", "descendants", "parents"]

SUPPORTED = sys.platform == "linux"
"""Whether this system has what it takes."""

KILL_SIGNAL = signal.SIGUSR1
"""Has a guardian kill its worker, and all that came of it."""

_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36


def become_guardian() -> None:
    """Makes this process a guardian; returns in its child, the worker, only."""
    import ctypes

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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)


def _guard(worker: int) -> None:
    """Waits for the end of the worker, ends what is left of it, and itself in the same way."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))

    def forward(number: int, _: object) -> None:
        with suppress(OSError):
            if number == signal.SIGABRT:  # only the report is wanted, not a file with its memory
                resource.prlimit(worker, resource.RLIMIT_CORE, (0, 0))
            os.kill(worker, signal.SIGKILL if number == KILL_SIGNAL else number)

    for number in (signal.SIGTERM, signal.SIGABRT, KILL_SIGNAL):
        signal.signal(number, forward)
    for number in (signal.SIGINT, signal.SIGHUP):  # these are for the caller, which ends us
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGABRT, KILL_SIGNAL))
    status = None
    while status is None:
        pid, ended = os.waitpid(-1, 0)
        if pid == worker:
            status = ended
    with suppress(ChildProcessError):  # there are no more
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
    """The parent of each process there is."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def descendants(pid: int, parent_of: dict[int, int]) -> Iterable[int]:
    """What a process started, and whatever that started in turn."""
    children: dict[int, list[int]] = {}
    for child, parent in parent_of.items():
        children.setdefault(parent, []).append(child)

    def below(parent: int) -> Iterator[int]:
        for child in children.get(parent, ()):
            yield child
            yield from below(child)

    return below(pid)
