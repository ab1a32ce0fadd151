"""Calls of Windows.

On Windows, ``select`` waits only for sockets. So workers are connected by pairs of sockets instead
of pipes, and a thread per worker closes a socket when the worker's process ends. Shared memory is a
temporary file, which Windows keeps in memory unless memory runs out.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import secrets
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing import connection, context
from typing import TYPE_CHECKING, Any

assert sys.platform == "win32" or not TYPE_CHECKING  # type checkers skip the rest elsewhere

from xuance_envs.engine.system.not_linux import *  # noqa: E402, F403
from xuance_envs.engine.system.not_linux import no_result, refuse  # noqa: E402

NAME = "Windows"
HAS_FILE_MODES = False
HAS_SERVER = False
CAN_COUNT_SLEEPS = False
CAN_MAKE_PRIVATE = False
HANGUP: Any = None
KILL_SIGNAL = signal.SIGTERM
POLLIN, POLLOUT = 1, 4

_INTERRUPT_INTERVAL = 0.25  # seconds between two chances for Ctrl-C, which does not end a select
_ZEROS = bytes(1 << 20)

yield_cpu = partial(time.sleep, 0)
blocked_sigint = held_fork = nullcontext

make_private = send_parts = refuse
is_closed_by_peer: Callable[[socket.socket], bool] = refuse
unix_socket: Callable[[], socket.socket] = refuse
limit_unsent = lower_priority = raise_open_files_limit = start_helpers = no_result
open_files_limits = processes_limits = no_result
make_private_in_forks = set_inheritable = no_result  # handles are not inherited
before_fork = after_fork = no_result

# -- pipes ----------------------------------------------------------------------------

_sockets: dict[int, socket.socket] = {}  # the ends of all pipes, by descriptor


def _keep(end: socket.socket) -> int:
    _sockets[end.fileno()] = end
    return end.fileno()


def open_pipe() -> tuple[int, int]:
    """Open a pipe; return its read end and its write end."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    read_end, write_end = map(_keep, ends)
    return read_end, write_end


def read(fd: int, nbytes: int) -> bytes:
    try:
        return _sockets[fd].recv(nbytes)
    except ConnectionResetError:  # the other end was closed with unread data
        return b""


def readv(fd: int, buffers: Sequence[memoryview]) -> int:
    """Read into the first buffer; return the number of bytes."""
    return _sockets[fd].recv_into(buffers[0])


def write(fd: int, data: bytes | memoryview) -> int:
    return _sockets[fd].send(data)


def close(fd: int) -> None:
    _sockets.pop(fd).close()


def set_blocking(fd: int, blocking: bool) -> None:
    _sockets[fd].setblocking(blocking)


class poll:  # noqa: N801
    """A replacement for ``select.poll``, for sockets only."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, fd: int | socket.socket, events: int) -> None:
        self._wanted[fd if isinstance(fd, int) else fd.fileno()] = events

    def unregister(self, fd: int) -> None:
        del self._wanted[fd]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        """Wait until a socket is ready; return its descriptor and the ready events."""
        left = float("inf") if milliseconds is None else max(0.0, milliseconds / 1e3)
        readers = [fd for fd, events in self._wanted.items() if events & POLLIN]
        writers = [fd for fd, events in self._wanted.items() if events & POLLOUT]
        if not readers and not writers:  # select would raise
            time.sleep(0.0 if milliseconds is None else left)
            return []
        end = time.monotonic() + left
        while True:
            readable, writable, _ = select.select(
                readers, writers, [], min(left, _INTERRUPT_INTERVAL)
            )
            if readable or writable or left <= _INTERRUPT_INTERVAL:
                return [(fd, POLLIN) for fd in readable] + [(fd, POLLOUT) for fd in writable]
            left = max(0.0, end - time.monotonic())


# -- shared memory --------------------------------------------------------------------


def open_anonymous_file() -> int:
    """Open a file that is deleted when all its descriptors are closed."""
    path = os.path.join(tempfile.gettempdir(), f"xuance_envs-{secrets.token_hex(8)}")
    how = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_BINARY | os.O_NOINHERIT
    return os.open(path, how | os.O_TEMPORARY | os.O_SHORT_LIVED, 0o600)


def _mapped(fd: int, nbytes: int, offset: int) -> tuple[mmap.mmap, int]:
    """Map bytes of a file; return the map, and the place of these bytes in it."""
    place = offset % mmap.ALLOCATIONGRANULARITY
    return mmap.mmap(fd, place + nbytes, offset=offset - place), place


def pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Read through a map, because a file's position is shared with its duplicates."""
    memory, place = _mapped(fd, nbytes, offset)
    with memory:
        return memory[place : place + nbytes]


def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
    memory, place = _mapped(fd, len(data), offset)
    with memory:
        memory[place : place + len(data)] = data
    return len(data)


def reserve(fd: int, start: int, nbytes: int) -> None:
    if os.fstat(fd).st_size < start + nbytes:
        os.ftruncate(fd, start + nbytes)


def truncate(fd: int, size: int) -> None:
    """Fill a file from ``size`` on with zeros, because a mapped file cannot shrink."""
    end = os.fstat(fd).st_size
    for at in range(size, end, len(_ZEROS)):
        pwrite(fd, _ZEROS[: end - at], at)


# -- processes ------------------------------------------------------------------------


class pass_descriptor:  # noqa: N801
    """A pipe's end or a file, duplicated for the process that is being started."""

    def __init__(self, fd: int) -> None:
        import msvcrt

        child: Any = context.get_spawning_popen()
        self._socket = _sockets[fd].share(child.pid) if fd in _sockets else None
        self._handle = 0
        if self._socket is None:
            self._handle = child.duplicate_for_child(msvcrt.get_osfhandle(fd))

    def detach(self) -> int:
        import msvcrt

        if self._socket is not None:
            return _keep(socket.fromshare(self._socket))
        return msvcrt.open_osfhandle(self._handle, os.O_RDWR | os.O_BINARY | os.O_NOINHERIT)


def open_end_watch(pid: int) -> int | None:
    import _winapi

    process = _winapi.OpenProcess(_winapi.SYNCHRONIZE, False, pid)
    ours, theirs = socket.socketpair()

    def watch() -> None:
        with theirs:
            _winapi.WaitForSingleObject(process, _winapi.INFINITE)
        _winapi.CloseHandle(process)

    threading.Thread(target=watch, name=f"xuance_envs-end-of-{pid}", daemon=True).start()
    return _keep(ours)


close_end_watch = close


def start_group() -> None:
    """Let the system end all processes started by this one when this one ends."""
    kernel = ctypes.WinDLL("kernel32")
    kernel.CreateJobObjectW.restype = kernel.GetCurrentProcess.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))  # open until this process ends
    limits = bytearray(144 if sys.maxsize > 1 << 32 else 112)  # EXTENDED_LIMIT_INFORMATION
    struct.pack_into("<I", limits, 16, 0x2000)  # KILL_ON_JOB_CLOSE
    kernel.SetInformationJobObject(job, 9, bytes(limits), len(limits))
    kernel.AssignProcessToJobObject(job, ctypes.c_void_p(kernel.GetCurrentProcess()))


def kill_group(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)  # ends the process at once


abort = terminate_group = kill_group


def ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_after_main(_: int, grace: float) -> None:
    parent: Any = multiprocessing.parent_process()
    connection.wait([parent.sentinel])
    time.sleep(grace)
    kill_group(os.getpid())


def count_sleeps() -> int:
    return 0
