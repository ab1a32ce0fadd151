"""Calls that Linux and macOS share."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

assert sys.platform != "win32" or not TYPE_CHECKING  # type checkers skip the rest on Windows

HAS_FILE_MODES = True  # files have Unix permissions
HAS_SERVER = True  # the HTTP server, and direct connections to Ray actors, work here

HANGUP: Any = signal.SIGHUP  # sent by a closing terminal

CAN_COUNT_SLEEPS = True
CAN_MAKE_PRIVATE = True  # shared memory can become private

_MAP_FIXED = 0x10

yield_cpu = os.sched_yield
poll, POLLIN, POLLOUT = select.poll, select.POLLIN, select.POLLOUT
open_pipe, read, write, close = os.pipe, os.read, os.write, os.close
pread, pwrite = os.pread, os.pwrite
set_blocking, set_inheritable = os.set_blocking, os.set_inheritable
readv = os.readv
truncate = os.ftruncate
send_parts = socket.socket.sendmsg
pass_descriptor = reduction.DupFd


def after_fork(callback: Callable[[], object]) -> None:
    """Call a function in every process forked from this one."""
    os.register_at_fork(after_in_child=callback)


def before_fork(callback: Callable[[], object]) -> None:
    """Call a function before every fork of this process."""
    os.register_at_fork(before=callback)


@contextmanager
def _blocked(signals: Iterable[int]) -> Iterator[None]:
    """Block signals in this context; processes that start in it inherit the block."""
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


blocked_sigint = partial(_blocked, {signal.SIGINT})


@contextmanager
def held_fork() -> Iterator[None]:
    """Fork a child that exits at once; the fork runs hooks that stop libraries' threads."""
    # An exception from a signal handler would make the child continue this program.
    with _blocked(signal.valid_signals()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and later warn about threads
            child = os.fork()
        if child == 0:
            os._exit(0)
        yield
        os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program may reap its children elsewhere
            os.waitpid(child, 0)


def make_private_in_forks(memory: mmap.mmap, fd: int, offset: int) -> None:
    """Make a memory map private (copy-on-write) in processes forked from this one."""
    remap = _private_remapping(memory, fd, offset)
    shared = [weakref.ref(memory)]

    def remap_if_open() -> None:
        if shared and shared.pop()() is not None:  # else its addresses may be reused
            remap()

    after_fork(remap_if_open)


def make_private(part: memoryview, fd: int, offset: int) -> None:
    """Make part of a memory map private (copy-on-write) in this process."""
    if not _private_remapping(part, fd, offset)():
        raise OSError(ctypes.get_errno(), "could not make shared memory private")


def _private_remapping(memory: mmap.mmap | memoryview, fd: int, offset: int) -> Callable[[], bool]:
    """Return a function that makes memory private and returns whether this succeeded."""
    c_mmap = ctypes.CDLL(None, use_errno=True).mmap
    c_mmap.restype = ctypes.c_void_p
    c_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    region = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    return lambda: bool(c_mmap(*region, *flags, fd, offset) == region[0])


def start_helpers(method: str) -> None:
    """Start the processes that a start method needs, before SIGINT is blocked."""
    from multiprocessing import forkserver, resource_tracker

    # The fork server would inherit the signal mask, and the resource tracker would reset it.
    if method == "forkserver":
        forkserver.ensure_running()
    resource_tracker.ensure_running()


def ignore_sigint() -> None:
    """Ignore Ctrl-C, and end the block that :func:`blocked_sigint` began."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def start_group() -> None:
    """Start a process group, so that signals for it and for the former group stay separate."""
    # The kernel schedules a session as a unit, so with one per worker, steps would take 5 % longer.
    os.setpgid(0, 0)
    # Else the kernel stops background groups that use the terminal.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)


def kill_group(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)


def terminate_group(pid: int) -> None:
    os.killpg(pid, signal.SIGTERM)


def end_after_main(requests: int, grace: float) -> None:
    """End this process and its group shortly after the main process, even if they are busy."""
    end = poll()
    end.register(requests, 0)  # report no data, only the end of the pipe
    while not end.poll():
        pass
    time.sleep(grace / 2)
    # Postpone the alarm of end_natively_after_main, which ends this process but not its group.
    signal.alarm(2)
    time.sleep(grace / 2)
    kill_group(0)


def open_temporary_file() -> int:
    """Open a file without a name; return its descriptor, which is above 2."""
    with tempfile.TemporaryFile() as file:
        return above_stdio(os.dup(file.fileno()))


def above_stdio(fd: int) -> int:
    """Return the descriptor if it is above 2; otherwise replace it by a duplicate that is."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def count_sleeps() -> int:
    """Return how often this thread has given up its CPU; on macOS, how often this process has."""
    who: int = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_nvcsw


def lower_priority() -> None:
    """Let other processes take precedence over this one."""
    os.nice(5)


def _limits(kind: int) -> tuple[int | None, int | None] | None:
    """Return a soft and a hard limit; each is None if unlimited."""
    soft, hard = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(kind))
    return soft, hard


open_files_limits = partial(_limits, resource.RLIMIT_NOFILE)
processes_limits = partial(_limits, resource.RLIMIT_NPROC)  # of the user


def raise_open_files_limit() -> None:
    """Increase this process's limit on open files to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX)


def limit_unsent(connection: socket.socket, nbytes: int) -> None:
    """Set the number of unsent bytes above which the kernel accepts no more."""
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, nbytes)


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Return whether the peer has closed a connection; call it after reading all data."""
    with suppress(OSError):
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False
