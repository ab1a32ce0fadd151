"""What a process is started in: with its ``__main__``, interrupts and descriptors seen to."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "blocked_sigint",
    "deferred_interrupt",
    "hidden_main",
    "make_two_pipes",
    "pidfd_of",
    "reserved_descriptors",
]

SPARE_DESCRIPTORS = 16
"""More descriptors than are open at any moment of a start, and not before it."""


def make_two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """The reading and the writing end of each of two pipes: both are made, or none."""
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        for fd in first:
            os.close(fd)
        raise


def pidfd_of(pid: int) -> int | None:
    """A descriptor that turns readable when the process ends, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux; an older kernel, or one that is not let
        return None


@contextmanager
def hidden_main() -> Iterator[None]:
    """Keeps multiprocessing from importing ``__main__`` in the process being started."""
    main = sys.modules["__main__"]
    names: dict[str, Any] = vars(main)
    hidden: dict[str, Any] = {
        name: names.pop(name) for name in ("__file__", "__spec__") if name in names
    }
    main.__spec__ = None
    try:
        yield
    finally:
        names.update(hidden)


@contextmanager
def reserved_descriptors() -> Iterator[None]:
    """Makes sure that descriptors do not run out within a start, and keeps 0 to 2 taken.

    A start that fails half way lets go of all it has, but what multiprocessing does may not. And a
    worker started while 0 to 2 are closed would have a pipe of ours as its standard output.
    """
    taken: list[int] = []
    try:
        for _ in range(SPARE_DESCRIPTORS):
            taken.append(os.open(os.devnull, os.O_RDWR))
        for fd in taken:
            if fd > 2:
                os.close(fd)
            else:
                os.set_inheritable(fd, True)
        taken = [fd for fd in taken if fd <= 2]
        yield
    finally:
        for fd in taken:
            os.close(fd)


@contextmanager
def blocked_sigint() -> Iterator[None]:
    """Keeps Ctrl-C from a process that does not ignore it yet; it inherits the mask."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Puts off Ctrl-C until the end.

    A mask would not do: the signal then goes to another thread, of a numeric library perhaps, and
    Python's handler runs in the main thread all the same.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
