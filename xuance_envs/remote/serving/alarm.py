"""Who takes long: one timer for all who are waited for, instead of one for each."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Alarm"]


class _Waited(Protocol):
    def take_long(self) -> None: ...


class Alarm:
    """Tells those who are waited for that they take long.

    A timer for each of thousands a second, most of which are cancelled at once, takes as long as
    all else that is noted of a step.

    Args:
        seconds: after how long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[_Waited, float] = {}  # in the order they are due
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self, who: _Waited) -> None:
        """Has somebody told in a while, unless it is stopped; it is not set for them now."""
        loop = self._loop
        if loop is None:  # which asks the system for a process id each time
            loop = self._loop = asyncio.get_running_loop()
        due = self._due[who] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._ring, loop)

    def stop(self, who: _Waited) -> None:
        """Has somebody told no more; where they have been, it does nothing."""
        self._due.pop(who, None)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = [who for who, due in self._due.items() if due <= now]
        for who in late:
            del self._due[who]
        first = next(iter(self._due.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._ring, loop)
        for who in late:
            who.take_long()
