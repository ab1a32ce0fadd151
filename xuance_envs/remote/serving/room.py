"""Memory that requests share: each takes its part, and waits where there is too little left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from xuance_envs.remote.failures import RefusedError

__all__ = ["Room"]


class Room:
    """So many bytes, for whoever asks.

    Args:
        size: how many.
        what: what they are for, for errors.
    """

    def __init__(self, size: int, what: str) -> None:
        self._size = size
        self._what = what
        self._taken = 0
        self._given_back = asyncio.Condition()

    def has(self, size: int) -> bool:
        """Whether there are so many bytes left; alone anybody has room, whatever it takes."""
        return not self._taken or self._taken + size <= self._size

    @asynccontextmanager
    async def hold(self, size: int, seconds: float) -> AsyncIterator[None]:
        """Holds so many bytes.

        Args:
            size: how many.
            seconds: how long it may take to get them.

        Raises:
            RefusedError: there were too few in time.
        """
        try:
            await asyncio.wait_for(self._take(size), seconds)
        except asyncio.TimeoutError:
            raise RefusedError(
                429, "busy", f"the server has too many {self._what} under way: try again"
            ) from None
        try:
            yield
        finally:
            self._taken -= size
            async with self._given_back:
                self._given_back.notify_all()

    async def _take(self, size: int) -> None:
        async with self._given_back:
            await self._given_back.wait_for(lambda: self.has(size))
            self._taken += size
