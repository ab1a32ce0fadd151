"""Threads of numeric libraries: how many there are in a worker, and what a fork does to them.

A forked process has one thread. What a library knows of its others is wrong there, and who asks it
to end them or to have them work may wait for ever. So a library that was loaded before is told
around a fork what is to be so after it, and in the forked process no more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["count_native_threads", "limit_threads", "limited_in_fork"]

_THREAD_FUNCTIONS = {
    "torch": ("get_num_threads", "set_num_threads"),
    "cv2": ("getNumThreads", "setNumThreads"),
}
"""Libraries that do not ask the environment variables any more once they are loaded."""

# Those that were loaded when this process was forked from one that had other threads.
_broken_by_fork: set[str] = set()


def limit_threads(threads: int | None) -> None:
    """Limits the libraries that are loaded, but for those that would have to wait for threads."""
    if threads is not None:
        for _, set_number in _loaded():
            set_number(threads)


@contextmanager
def limited_in_fork(threads: int | None) -> Iterator[None]:
    """Limits the libraries that are loaded in a process that is forked meanwhile, but not here.

    OpenCV's threads end, to be started again where they are needed. Those of torch cannot be
    ended; a process with a limit of one does not need them.
    """
    before = [(set_number, get_number()) for get_number, set_number in _loaded()]
    try:
        for set_number, number in before:
            set_number(1)
            set_number(number if threads is None else threads)
        yield
    finally:
        for set_number, number in before:
            set_number(number)


def _loaded() -> list[tuple[Any, Any]]:
    return [
        (getattr(module, get), getattr(module, set_))
        for name, (get, set_) in _THREAD_FUNCTIONS.items()
        if name not in _broken_by_fork and hasattr(module := sys.modules.get(name), set_)
    ]


def count_native_threads() -> int:
    """How many threads of this process are native code's, and stay so when it is forked.

    Some libraries, such as OpenBLAS, end theirs before a fork, so a process is forked to see.
    """
    if _count() <= threading.active_count():
        return 0
    # The child must not run a handler, whose exception would have it go on as this program.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the very threads, from Python 3.12 on
            child = os.fork()
        if child == 0:
            os._exit(0)
        count = _count() - threading.active_count()
        os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program has its children waited for
            os.waitpid(child, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    return max(0, count)


def _count(process: int | str = "self") -> int:
    """How many threads a process has, 0 where the system does not say."""
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return 0


def _mark_broken() -> None:
    if _count(os.getppid()) != 1:
        _broken_by_fork.update(name for name in _THREAD_FUNCTIONS if name in sys.modules)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_broken)
