"""Thread counts of numeric libraries in workers and across forks.

A forked process has one thread. There, a library may wait forever for threads that exist only
in the parent. So thread counts are set before the fork and stay unchanged after it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xuance_envs.engine.system.current import system

# Thread count functions of libraries that ignore environment variables once loaded.
_THREAD_FUNCTIONS = {
    "torch": ("get_num_threads", "set_num_threads"),
    "cv2": ("getNumThreads", "setNumThreads"),
}

# Libraries that were loaded when this process was forked from a multi-threaded one.
_broken_by_fork: set[str] = set()


def limit_threads(threads: int | None) -> None:
    """Limit the threads of loaded libraries, except libraries that lost their threads in a fork."""
    if threads is not None:
        for _, set_number in _loaded():
            set_number(threads)


@contextmanager
def limited_in_fork(threads: int | None) -> Iterator[None]:
    """Limit library threads in processes forked inside this context, but not in this process."""
    before = [(set_number, get_number()) for get_number, set_number in _loaded()]
    try:
        for set_number, number in before:
            # This stops OpenCV's threads. torch cannot stop its own, but 1 thread needs none.
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
    """Return the number of native threads that a fork of this process would not stop."""
    if system.count_threads() <= threading.active_count():
        return 0
    with system.held_fork():
        return max(0, system.count_threads() - threading.active_count())


def _mark_broken() -> None:
    if system.count_threads(os.getppid()) != 1:
        _broken_by_fork.update(name for name in _THREAD_FUNCTIONS if name in sys.modules)


system.after_fork(_mark_broken)
