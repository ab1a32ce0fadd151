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
from xuance_envs.remote.observed import Observer
from xuance_envs.remote.serving.replies import Replies
from xuance_envs.remote.serving.requests import Reply, Request
from xuance_envs.remote.settings import Limits

__all__ = ["Guard", "Guarded"]

logger = logging.getLogger("xuance_envs")

PATIENCE = 5.0
"""Seconds a large answer may take where others wait for its room."""


class Guarded(Protocol):
    """A connection, as far as it is kept within bounds.

    Attributes:
        requests: how many it has had.
        idle_since: since when there was nothing to do, where there is nothing.
    """

    requests: int
    idle_since: float

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""

    def give_up(self) -> None:
        """Ends it at once, and what was to be written with it."""

    def look(self, now: float) -> None:
        """Ends it where a head, the taking of an answer or a pause has had its time."""


class Guard:
    """What the connections of a server have in common.

    Args:
        limits: what each may cost.
        most: how many there may be.
        answer: answers a request for a route that takes messages.
        posts: these routes.
        pages: what is always answered the same to a GET of a path.
        observer: is told of each request.
        replies: large answers.
        hosts: the hosts that requests may be for; None for any.
        proxies: those in front of the server.

    Attributes:
        connections: those there are.
    """

    def __init__(
        self,
        limits: Limits,
        most: int,
        answer: Callable[[Request], Awaitable[Reply]],
        posts: Iterable[str],
        pages: Mapping[str, Reply],
        observer: Observer,
        replies: Replies,
        hosts: frozenset[bytes] | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self.limits = limits
        self.answer = answer
        self.proxies = proxies or Proxies()
        roots = {"", self.proxies.root_path}
        self.posts = {(root + path).encode(): path for path in posts for root in roots}
        self.pages = {
            (root + path).encode(): (root + path, reply)
            for path, reply in pages.items()
            for root in roots
        }
        self.observer = observer
        self.hosts = hosts
        self.connections: set[Guarded] = set()
        self._most = most
        self._replies = replies
        self._sending: dict[Guarded, float] = {}
        self._said: dict[str, tuple[float, int]] = {}

    def admit(self, connection: Guarded) -> bool:
        """Makes room for a connection; returns whether there is any."""
        self.connections.add(connection)
        if len(self.connections) <= self._most:
            return True
        idle = [each for each in self.connections if each is not connection and each.is_idle]
        if not idle:
            self.say("refused a connection", f"all of {self._most} are at work")
            return False
        longest = min(idle, key=lambda each: (each.requests > 0, each.idle_since))
        self.say("closed an idle connection", f"there may be {self._most}")
        longest.give_up()
        return True

    def look(self) -> None:
        """Gives up connections that have had their time; to be called about every second."""
        now = monotonic()
        for connection in list(self.connections):
            connection.look(now)

    @asynccontextmanager
    async def sending(self, connection: Guarded, size: int) -> AsyncIterator[None]:
        """Holds room for a large answer; who has been at one for longest makes it.

        Raises:
            RefusedError: there was no room in time.
        """
        sending = self._sending
        if not self._replies.sent.has(size) and sending:
            slowest = min(sending, key=sending.__getitem__)
            if monotonic() - sending[slowest] > PATIENCE:
                self.say("closed a connection", "it took its answer slowly, and others waited")
                slowest.give_up()
        async with self._replies.sent.hold(size, self.limits.write):
            sending[connection] = monotonic()
            try:
                yield
            finally:
                del sending[connection]

    def say(self, what: str, why: str) -> None:
        """Logs that a limit struck, at most once a second for each."""
        then, missed = self._said.get(what, (0.0, 0))
        now = monotonic()
        if now - then < 1.0:
            self._said[what] = then, missed + 1
            return
        self._said[what] = now, 0
        logger.warning("%s: %s%s", what, why, f" ({missed} more before)" if missed else "")
