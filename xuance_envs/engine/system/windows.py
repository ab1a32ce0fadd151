"""Calls of Windows, which has no worker processes yet."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

assert sys.platform == "win32" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.not_linux import *  # noqa: E402, F403

NAME = "Windows"
HAS_FILE_MODES = False
HAS_WORKER_PROCESSES = False
CAN_COUNT_SLEEPS = False
KILL_SIGNAL = 0
POLLIN, POLLOUT = 1, 4

yield_cpu = partial(time.sleep, 0)


def _refuse(*_: object) -> Any:
    raise RuntimeError("worker processes are not available on Windows")


become_guardian = start_group = ignore_sigint = blocked_sigint = end_after_main = _refuse
open_anonymous_file = reserve = make_private = make_private_in_forks = _refuse
pread = pwrite = readv = _refuse
pass_descriptor = close_end_watch = abort = kill_group = _refuse
set_blocking = send_parts = limit_memory = watch_together = _refuse
is_closed_by_peer: Callable[[socket.socket], bool] = _refuse
unix_socket: Callable[[], socket.socket] = _refuse


class poll:  # noqa: N801
    """A replacement of ``select.poll``, for sockets only."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, fd: int | socket.socket, events: int) -> None:
        self._wanted[fd if isinstance(fd, int) else fd.fileno()] = events

    def unregister(self, fd: int) -> None:
        del self._wanted[fd]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        """Wait until a socket is ready; return its descriptor and the ready events."""
        seconds = None if milliseconds is None else max(0.0, milliseconds / 1e3)
        readers = [fd for fd, events in self._wanted.items() if events & POLLIN]
        writers = [fd for fd, events in self._wanted.items() if events & POLLOUT]
        if not readers and not writers:  # select would raise
            time.sleep(seconds or 0.0)
            return []
        readable, writable, _ = select.select(readers, writers, [], seconds)
        return [(fd, POLLIN) for fd in readable] + [(fd, POLLOUT) for fd in writable]


def after_fork(callback: Callable[[], object]) -> None:
    """Do nothing: Windows does not fork."""


before_fork = after_fork


@contextmanager
def held_fork() -> Iterator[None]:
    yield


def count_sleeps() -> int:
    return 0


def _no_result(*_: object) -> Any:
    return None


open_end_watch = limit_unsent = lower_priority = raise_open_files_limit = _no_result
open_files_limits = processes_limits = hangup_signal = _no_result
