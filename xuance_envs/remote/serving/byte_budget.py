"""Memory that requests share: each takes its part, and waits where there is too little left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from xuance_envs.remote.failures import RefusedError

__all__ = ["ByteBudget"]


class ByteBudget:
    """So many bytes, for whoever asks."""

    def __init__(self, size: int, what: str) -> None:
        self._size = size
        self._what = what
        self._used = 0
        self._released = asyncio.Condition()

    def has_room(self, size: int) -> bool:
        """Whether there are so many bytes left; alone anybody has room, whatever it takes."""
        return not self._used or self._used + size <= self._size

    @asynccontextmanager
    async def reserve(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Holds so many bytes."""
        try:
            await asyncio.wait_for(self._take(size), seconds)
        except asyncio.TimeoutError:
            raise RefusedError(
                429, "busy", f"the server has too many {self._what} under way: try again"
            ) from None
        try:
            yield
        finally:
            self._used -= size
            async with self._released:
                self._released.notify_all()

    async def _take(self, size: int) -> None:
        async with self._released:
            await self._released.wait_for(lambda: self.has_room(size))
            self._used += size
