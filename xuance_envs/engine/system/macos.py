"""Calls of macOS, and of other systems with BSD's calls."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

assert sys.platform == "darwin" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.posix import *  # noqa: E402, F403
from xuance_envs.engine.system.posix import open_temporary_file  # noqa: E402

NAME = "macOS"
HAS_GUARDIANS = False
KILL_SIGNAL = signal.SIGKILL
LIMITS_CPU_AND_MEMORY = False

# An object of shm_open accepts ftruncate only once there, but shared memory grows.
open_anonymous_file = open_temporary_file

_queues: dict[int, select.kqueue] = {}


def cpu_affinity(pid: int = 0) -> set[int] | None:
    return None


def set_cpu_affinity(pid: int, cpus: Collection[int]) -> None:
    pass


def current_cpu_function() -> Callable[[], int] | None:
    return None


def open_end_watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None if unsupported."""
    try:
        queue = select.kqueue()
    except OSError:
        return None
    exits = select.kevent(
        pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
    )
    try:
        queue.control([exits], 0)
    except OSError:  # the process has ended
        queue.close()
        return None
    _queues[queue.fileno()] = queue
    return queue.fileno()


def close_end_watch(fd: int) -> None:
    _queues.pop(fd).close()


def open_counters(*semaphores: bool) -> tuple[int, ...] | None:
    return None


def watch_together(fds: Iterable[int]) -> Any:
    raise NotImplementedError("macOS has no event counters")


def become_guardian() -> NoReturn:
    raise NotImplementedError("macOS has no guardian processes")


def reserve(fd: int, start: int, nbytes: int) -> None:
    os.ftruncate(fd, start + nbytes)


def reopen(fd: int) -> int | None:
    return None


def abort(pid: int) -> None:
    os.kill(pid, signal.SIGABRT)


def end_natively_after_main() -> None:
    """Do nothing: the kernel sends no signal when another process ends."""


def count_threads(process: int | str = "self") -> int:
    return 0


def process_usage(pids: Iterable[int]) -> dict[int, tuple[float, int]]:
    return {}


def kill_first_without_memory() -> None:
    pass


def limit_memory(nbytes: int) -> None:
    raise NotImplementedError("macOS does not enforce memory limits")


def available_memory() -> int | None:
    return None
