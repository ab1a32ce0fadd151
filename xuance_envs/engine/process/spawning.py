"""Context managers around process starts, and helpers for pipes and descriptors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xuance_envs.engine.system.current import system

SPARE_DESCRIPTORS = 16  # number of free descriptors that suffice for starting a process


def make_two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Create two pipes, or none on failure; return (read end, write end) of each."""
    first = system.open_pipe()
    try:
        return first, system.open_pipe()
    except OSError:
        for fd in first:
            system.close(fd)
        raise


@contextmanager
def hidden_main() -> Iterator[None]:
    """Keep multiprocessing from importing ``__main__`` in a new process."""
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
    """Check that enough descriptors are free for a start, and keep descriptors 0 to 2 open."""
    # Without free ones, multiprocessing may leak some. If 0 to 2 are closed, a worker would use one
    # of our pipes as its standard output.
    reserved: list[int] = []
    try:
        for _ in range(SPARE_DESCRIPTORS):
            reserved.append(os.open(os.devnull, os.O_RDWR))
        for fd in reserved:
            if fd > 2:
                os.close(fd)
            else:
                os.set_inheritable(fd, True)
        reserved = [fd for fd in reserved if fd <= 2]
        yield
    finally:
        for fd in reserved:
            os.close(fd)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C until the context ends."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    # Blocking the signal would not suffice: another thread may receive it.
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)
