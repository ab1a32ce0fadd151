"""Signal from one thread to another."""

from __future__ import annotations

import threading
from contextlib import suppress
from time import perf_counter

from xuance_envs.engine.system.current import system


class Doorbell:
    """Binary semaphore that one thread waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float = -1.0, spin: float = 0.0) -> bool:
        """Wait until it rings, forever by default; first spin for ``spin`` seconds."""
        if spin and timeout:
            end = perf_counter() + spin
            while perf_counter() < end:
                if self._lock.acquire(False):
                    return True
                system.yield_cpu()
        return self._lock.acquire(timeout=timeout)

    def ring(self) -> None:
        if self._lock.locked():
            with suppress(RuntimeError):  # another thread rang in between
                self._lock.release()
