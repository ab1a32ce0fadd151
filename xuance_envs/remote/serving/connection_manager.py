"""State that the connections of a server share, and limits on all of them together.

- A connection beyond the limit replaces the one that has been idle for longest, preferably one that
  never sent a request.
- Large replies share a byte budget. If it is exhausted, the slowest reader is disconnected.
- Limit violations are logged at most once a second per kind.
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

logger = logging.getLogger("xuance_envs")

SLOW_READER_TIMEOUT = 5.0
"""Seconds that a large reply may take while others wait for the budget."""


class ManagedConnection(Protocol):
    requests: int
    idle_since: float

    @property
    def is_idle(self) -> bool: ...

    def abort(self) -> None:
        """Close the connection immediately and discard unsent data."""

    def check_timeouts(self, now: float) -> None:
        """Close the connection if it has exceeded a time limit."""


class ConnectionManager:
    """Routes, settings and limits that the connections of a server share."""

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
        self._send_started: dict[ManagedConnection, float] = {}
        self._last_logged: dict[str, tuple[float, int]] = {}

    def add(self, connection: ManagedConnection) -> bool:
        """Register a connection and return whether it is accepted; may close an idle one for it."""
        self.connections.add(connection)
        if len(self.connections) <= self._max_connections:
            return True
        idle = [each for each in self.connections if each is not connection and each.is_idle]
        if not idle:
            self.log_limit("refused a connection", f"all {self._max_connections} are busy")
            return False
        longest = min(idle, key=lambda each: (each.requests > 0, each.idle_since))
        self.log_limit("closed an idle connection", f"the limit is {self._max_connections}")
        longest.abort()
        return True

    def check_timeouts(self) -> None:
        now = monotonic()
        for connection in list(self.connections):
            connection.check_timeouts(now)

    @asynccontextmanager
    async def reserve_send(self, connection: ManagedConnection, size: int) -> AsyncIterator[None]:
        """Reserve budget for a large reply, disconnecting the slowest reader if necessary."""
        started = self._send_started
        if not self._replies.send_budget.has_room(size) and started:
            slowest = min(started, key=started.__getitem__)
            if monotonic() - started[slowest] > SLOW_READER_TIMEOUT:
                self.log_limit(
                    "closed a connection", "it read its reply slowly while others waited"
                )
                slowest.abort()
        async with self._replies.send_budget.reserve(size, self.limits.write):
            started[connection] = monotonic()
            try:
                yield
            finally:
                del started[connection]

    def log_limit(self, event: str, reason: str) -> None:
        """Log that a limit was reached, at most once a second per kind."""
        last, suppressed = self._last_logged.get(event, (0.0, 0))
        now = monotonic()
        if now - last < 1.0:
            self._last_logged[event] = last, suppressed + 1
            return
        self._last_logged[event] = now, 0
        logger.warning(
            "%s: %s%s", event, reason, f" ({suppressed} more not logged)" if suppressed else ""
        )
