"""What the connections of a server have in common: how many there may be, and what they are for.

What it guarantees:

- There are only so many connections. Where one more comes, the one that has been idle for longest
  makes room, and one that has never had a request goes before the others.
- Large answers are given to connections as far as there is room; who is slowest makes it.
- Each of these is said in the log, at most once a second.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol

from xuance_envs.remote.access.proxies import Proxies
from xuance_envs.remote.request_log import RequestLog
from xuance_envs.remote.serving.large_replies import LargeReplies
from xuance_envs.remote.serving.requests import Reply, Request
from xuance_envs.remote.settings import Limits

__all__ = ["ConnectionManager", "ManagedConnection"]

logger = logging.getLogger("xuance_envs")

SLOW_READER_TIMEOUT = 5.0
"""Seconds a large answer may take where others wait for its room."""


class ManagedConnection(Protocol):
    """A connection, as far as it is kept within bounds."""

    requests: int
    idle_since: float

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""

    def abort(self) -> None:
        """Ends it at once, and what was to be written with it."""

    def check_timeouts(self, now: float) -> None:
        """Ends it where a head, the taking of an answer or a pause has had its time."""


class ConnectionManager:
    """What the connections of a server have in common."""

    def __init__(
        self,
        limits: Limits,
        max_connections: int,
        handler: Callable[[Request], Awaitable[Reply]],
        post_routes: Iterable[str],
        static_replies: Mapping[str, Reply],
        request_log: RequestLog,
        replies: LargeReplies,
        hosts: frozenset[bytes] | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self.limits = limits
        self.handler = handler
        self.proxies = proxies or Proxies()
        roots = {"", self.proxies.root_path}
        self.post_routes = {(root + path).encode(): path for path in post_routes for root in roots}
        self.static_replies = {
            (root + path).encode(): (root + path, reply)
            for path, reply in static_replies.items()
            for root in roots
        }
        self.request_log = request_log
        self.hosts = hosts
        self.connections: set[ManagedConnection] = set()
        self._max_connections = max_connections
        self._replies = replies
        self._sending: dict[ManagedConnection, float] = {}
        self._last_logged: dict[str, tuple[float, int]] = {}

    def add(self, connection: ManagedConnection) -> bool:
        """Makes room for a connection; returns whether there is any."""
        self.connections.add(connection)
        if len(self.connections) <= self._max_connections:
            return True
        idle = [each for each in self.connections if each is not connection and each.is_idle]
        if not idle:
            self.log_limit("refused a connection", f"all of {self._max_connections} are at work")
            return False
        longest = min(idle, key=lambda each: (each.requests > 0, each.idle_since))
        self.log_limit("closed an idle connection", f"there may be {self._max_connections}")
        longest.abort()
        return True

    def check_timeouts(self) -> None:
        """Gives up connections that have had their time; to be called about every second."""
        now = monotonic()
        for connection in list(self.connections):
            connection.check_timeouts(now)

    @asynccontextmanager
    async def reserve_send(self, connection: ManagedConnection, size: int) -> AsyncIterator[None]:
        """Holds room for a large answer; who has been at one for longest makes it."""
        sending = self._sending
        if not self._replies.send_budget.has_room(size) and sending:
            slowest = min(sending, key=sending.__getitem__)
            if monotonic() - sending[slowest] > SLOW_READER_TIMEOUT:
                self.log_limit(
                    "closed a connection", "it took its answer slowly, and others waited"
                )
                slowest.abort()
        async with self._replies.send_budget.reserve(size, self.limits.write):
            sending[connection] = monotonic()
            try:
                yield
            finally:
                del sending[connection]

    def log_limit(self, what: str, why: str) -> None:
        """Logs that a limit struck, at most once a second for each."""
        then, missed = self._last_logged.get(what, (0.0, 0))
        now = monotonic()
        if now - then < 1.0:
            self._last_logged[what] = then, missed + 1
            return
        self._last_logged[what] = now, 0
        logger.warning("%s: %s%s", what, why, f" ({missed} more before)" if missed else "")
