"""Interrupts of this process, as opposed to failures of an environment."""

from __future__ import annotations

import signal
import traceback


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception from an environment is an interrupt of this process.

    Ctrl-C is an interrupt, and so is a non-:class:`Exception` from a signal handler, such as a
    handler that exits on SIGTERM. ``sys.exit`` in an environment is a failure of the environment.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
