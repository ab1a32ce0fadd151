"""Use of the kernel's event counters (eventfd), which only Linux has."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

COUNTER_BYTES = 8  # size of a read, which returns the counter


def increment(number: int) -> bytes:
    """Return the bytes whose write adds a number to a counter."""
    return number.to_bytes(COUNTER_BYTES, sys.byteorder)


def drain(counter: int) -> None:
    """Set a counter to zero."""
    with suppress(BlockingIOError):
        while True:
            os.read(counter, COUNTER_BYTES)
