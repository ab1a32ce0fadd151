"""Semaphore and memory budget for which requests wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from xuance_envs.remote.wire.failures import RefusedError


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


class ByteBudget:
    """Budget of bytes; a reservation waits until enough bytes are free."""

    def __init__(self, size: int, purpose: str) -> None:
        self._size = size
        self._purpose = purpose
        self._used = 0
        self._released = asyncio.Condition()

    def has_room(self, size: int) -> bool:
        """Return whether a reservation would succeed now; a single one may exceed the budget."""
        return not self._used or self._used + size <= self._size

    @asynccontextmanager
    async def reserve(self, size: int, timeout: float) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._acquire(size), timeout)
        except asyncio.TimeoutError:
            raise RefusedError(
                429, "busy", f"the server is processing too many {self._purpose}: try again later"
            ) from None
        try:
            yield
        finally:
            self._used -= size
            async with self._released:
                self._released.notify_all()

    async def _acquire(self, size: int) -> None:
        async with self._released:
            await self._released.wait_for(lambda: self.has_room(size))
            self._used += size
