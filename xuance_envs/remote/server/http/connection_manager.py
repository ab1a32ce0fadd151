"""State and limits that the connections of a server share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import nsmallest
from time import monotonic
from typing import Any, Protocol

from xuance_envs.remote.server.access import Proxies
from xuance_envs.remote.server.http.requests import Handler, Reply, RequestCycle
from xuance_envs.remote.server.monitoring import SAMPLE_INTERVAL, Metrics
from xuance_envs.remote.server.settings import Limits

logger = logging.getLogger("xuance_envs")

SLOW_READER_TIMEOUT = 5.0  # seconds that a large reply may take while others wait for the budget
MAX_PIPELINED_STARTS = 4  # per turn of the event loop; a step of another client takes five turns
MAX_UNREAD = 8 * 2**20  # bytes of unread replies to all clients without a token
EVICTED_FRACTION = 16  # beyond the limit, a new connection replaces up to limit / 16 idle ones


class ManagedConnection(Protocol):
    @property
    def has_token(self) -> bool: ...  # if its last API message had a valid token
    @property
    def waiting_since(self) -> float | None: ...  # for the client; None while a request runs
    @property
    def unread_bytes(self) -> int: ...  # of replies that wait because the client does not read
    def abort(self) -> None: ...  # discards unsent data
    def check_timeouts(self, now: float) -> None: ...


class ConnectionManager:
    def __init__(
        self,
        api: Any,  # an Api, whose module imports this one
        hosts: frozenset[bytes] | None,
        proxies: Proxies,
    ) -> None:
        self.limits: Limits = api.capacity.limits
        self.handler: Handler = api.answer
        self.metrics: Metrics = api.metrics
        self.proxies = proxies
        self._roots = {"", proxies.root_path}
        self.post_routes = {root + path: path for path in api.post_routes for root in self._roots}
        self.static_handlers: dict[str, Handler] = {}
        self.hosts = hosts
        self.connections: set[ManagedConnection] = set()
        self.is_closing = False
        self.unparsed_bytes = 0
        self._pipelined: deque[Callable[[], None]] = deque()
        self._send_budget = api.replies.send_budget
        self._send_started: dict[ManagedConnection, float] = {}
        self._unread: dict[ManagedConnection, int] = {}
        self._last_logged: dict[str, tuple[float, int]] = {}

    def add_static_reply(self, path: str, reply: Reply) -> None:
        async def answer(_: RequestCycle) -> Reply:
            return reply

        for root in self._roots:
            self.static_handlers[root + path] = answer

    def add(self, connection: ManagedConnection) -> bool:
        """Register a connection and return whether to keep it; close idle ones if necessary."""
        self.connections.add(connection)
        if len(self.connections) <= self.limits.connections:
            return True
        waits = [
            (each.has_token, since, number, each)
            for number, each in enumerate(self.connections)
            if each is not connection and (since := each.waiting_since) is not None
        ]
        if not waits:
            self.log_limit("refused a connection", f"all {self.limits.connections} are busy")
            return False
        # Close several at once, because each search takes as long as accepting many connections.
        count = max(1, self.limits.connections // EVICTED_FRACTION)
        for *_, each in nsmallest(count, waits):
            each.abort()
        self.log_limit("closed an idle connection", f"the limit is {self.limits.connections}")
        return True

    def start_pipelined(self, start: Callable[[], None]) -> None:
        """Queue the start of a connection's next request."""
        self._pipelined.append(start)
        if len(self._pipelined) == 1:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        for _ in range(min(MAX_PIPELINED_STARTS, len(self._pipelined))):
            self._pipelined.popleft()()
        if self._pipelined:
            asyncio.get_running_loop().call_soon(self._start_some)

    async def watch(self) -> None:
        """Check the connections' time limits and sample the metrics; never returns."""
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL)
            now = monotonic()
            for connection in list(self.connections):
                connection.check_timeouts(now)
            self.metrics.sample_steps()

    @asynccontextmanager
    async def reserve_send(self, connection: ManagedConnection, size: int) -> AsyncIterator[None]:
        """Reserve budget for a large reply; disconnect the slowest reader if necessary."""
        started = self._send_started
        if not self._send_budget.has_room(size) and started:
            slowest = min(started, key=started.__getitem__)
            if monotonic() - started[slowest] > SLOW_READER_TIMEOUT:
                self.disconnect(slowest, "its client read a reply slowly while others waited")
        async with self._send_budget.reserve(size, self.limits.write):
            started[connection] = monotonic()
            try:
                yield
            finally:
                del started[connection]

    def count_unread(self, connection: ManagedConnection) -> None:
        """Count unread replies to clients without tokens; above a limit, disconnect some."""
        unread = self._unread
        unread.pop(connection, None)
        if connection.has_token or not (size := connection.unread_bytes):
            return
        unread[connection] = size
        while sum(unread.values()) > MAX_UNREAD:
            oldest = next(iter(unread))
            del unread[oldest]
            if oldest.unread_bytes:
                self.disconnect(oldest, "too many replies have not been read")

    def disconnect(self, connection: ManagedConnection, reason: str) -> None:
        self.log_limit("closed a connection", reason)
        connection.abort()

    def log_limit(self, event: str, reason: str) -> None:
        """Log that a limit was reached, at most once a second per kind."""
        last, suppressed = self._last_logged.get(event, (0.0, 0))
        now = monotonic()
        if now - last < 1.0:
            self._last_logged[event] = last, suppressed + 1
            return
        self._last_logged[event] = now, 0
        more = f" ({suppressed} more not logged)" if suppressed else ""
        logger.warning("%s: %s%s", event, reason, more)
