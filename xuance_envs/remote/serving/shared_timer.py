"""Who takes long: one timer for all who are waited for, instead of one for each."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["SharedTimer"]


class _Client(Protocol):
    def on_timeout(self) -> None: ...


class SharedTimer:
    """Tells those who are waited for that they take long.

    A timer for each of thousands a second, most of which are cancelled at once, takes as long as
    all else that is noted of a step.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[_Client, float] = {}  # in the order they are due
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self, client: _Client) -> None:
        """Has somebody told in a while, unless it is stopped; it is not set for them now."""
        loop = self._loop
        if loop is None:  # which asks the system for a process id each time
            loop = self._loop = asyncio.get_running_loop()
        deadline = self._deadlines[client] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._fire, loop)

    def stop(self, client: _Client) -> None:
        """Has somebody told no more; where they have been, it does nothing."""
        self._deadlines.pop(client, None)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        expired = [client for client, deadline in self._deadlines.items() if deadline <= now]
        for client in expired:
            del self._deadlines[client]
        first = next(iter(self._deadlines.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._fire, loop)
        for client in expired:
            client.on_timeout()
