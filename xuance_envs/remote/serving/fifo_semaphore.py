"""How many sessions step at the same time: a few for each CPU, in the order they asked."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["FifoSemaphore"]


class FifoSemaphore:
    """Lets so many through at a time, and the others in the order they came.

    With hundreds of processes that want to run, the kernel lets some of them wait for long, and
    all of them find caches that others have filled.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Goes through if nobody has to wait; :meth:`leave` has to follow."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Goes through in turn; :meth:`leave` has to follow."""
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
        """Lets the next one through."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
