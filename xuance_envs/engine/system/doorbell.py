"""Signal from one thread to another."""

from __future__ import annotations

import threading
from contextlib import suppress


class Doorbell:
    """Binary semaphore that one thread waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.wait = self._lock.acquire

    def ring(self) -> None:
        if self._lock.locked():
            with suppress(RuntimeError):  # another thread rang in between
                self._lock.release()
