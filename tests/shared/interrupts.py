"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Sends this process's main thread Ctrl-C, so many seconds after the block began."""
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()
