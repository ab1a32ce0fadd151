"""Event counters of the kernel (eventfd), on Linux."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

SUPPORTED = hasattr(os, "eventfd")
"""True if this system has eventfd."""

COUNTER_BYTES = 8
"""Size of a read, which returns the counter."""


def open_counters(*flags: int) -> tuple[int, ...] | None:
    """Open a non-blocking counter for each value, or return None if this is not permitted."""
    counters: list[int] = []
    try:
        for each in flags:
            counters.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | each))
    except OSError:
        for fd in counters:
            os.close(fd)
        return None
    return tuple(counters)


def increment(number: int) -> bytes:
    """Return the bytes whose write adds a number to a counter."""
    return number.to_bytes(COUNTER_BYTES, sys.byteorder)


def drain(counter: int) -> None:
    """Set a counter to zero."""
    with suppress(BlockingIOError):
        while True:
            os.read(counter, COUNTER_BYTES)
