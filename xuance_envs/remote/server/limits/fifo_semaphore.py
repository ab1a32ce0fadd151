from __future__ import annotations

import asyncio
from collections import deque


class FifoSemaphore:
    """Semaphore that grants its slots in the order of requests.

    It limits concurrent steps to a few per CPU. With hundreds of runnable processes, the kernel
    would delay some of them for a long time, and CPU caches would be less effective.
    """

    def __init__(self, slots: int) -> None:
        self._free_slots = slots
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Acquire a slot if one is free; call :meth:`release` after it."""
        if not self._free_slots:
            return False
        self._free_slots -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a slot; call :meth:`release` after it."""
        if self.try_acquire():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free_slots += 1
