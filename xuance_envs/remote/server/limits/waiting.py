"""Memory budget for which requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from xuance_envs.remote.wire.failures import RefusedError


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
