"""Calls of macOS, and of other systems with BSD's calls."""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import TYPE_CHECKING

assert sys.platform == "darwin" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.not_linux import *  # noqa: E402, F403
from xuance_envs.engine.system.posix import *  # noqa: E402, F403
from xuance_envs.engine.system.posix import open_temporary_file  # noqa: E402

NAME = "macOS"
KILL_SIGNAL = signal.SIGKILL

# An object of shm_open accepts ftruncate only once there, but shared memory grows.
open_anonymous_file = open_temporary_file

_queues: dict[int, select.kqueue] = {}


def open_end_watch(pid: int) -> int | None:
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


def reserve(fd: int, start: int, nbytes: int) -> None:
    os.ftruncate(fd, start + nbytes)


def abort(pid: int) -> None:
    os.kill(pid, signal.SIGABRT)
