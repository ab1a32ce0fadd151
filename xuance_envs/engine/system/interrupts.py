"""Interrupts of this process, as opposed to failures of an environment."""

from __future__ import annotations

import signal
import traceback


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception comes from Ctrl-C or from a signal handler of this process."""
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
