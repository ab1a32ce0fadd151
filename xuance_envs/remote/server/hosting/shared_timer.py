from __future__ import annotations

import asyncio
from typing import Protocol


class _Client(Protocol):
    def on_timeout(self) -> None: ...


class SharedTimer:
    """Timer that calls ``on_timeout`` of each client after the same delay.

    One asyncio timer per step, usually cancelled early, would double the cost of tracking steps.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[_Client, float] = {}  # ordered by deadline
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self, client: _Client) -> None:
        """Start the delay of a client that has none running."""
        loop = self._loop
        if loop is None:  # cached, because get_running_loop() calls getpid()
            loop = self._loop = asyncio.get_running_loop()
        deadline = self._deadlines[client] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._fire, loop)

    def stop(self, client: _Client) -> None:
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
