from __future__ import annotations

from collections import OrderedDict

from xuance_envs.remote.server.http.requests import Reply
from xuance_envs.remote.server.limits.byte_budget import ByteBudget
from xuance_envs.remote.server.settings import Limits

LARGE_REPLY = 64 * 2**10
"""Bytes from which a reply counts as large."""


class LargeReplies:
    """Budgets for large replies, and stored large replies for repeated requests."""

    def __init__(self, limits: Limits) -> None:
        self.build_budget = ByteBudget(limits.replies, "large replies")
        self.send_budget = ByteBudget(limits.replies, "large replies")
        self._max_bytes = limits.kept
        self._replies: OrderedDict[str, Reply] = OrderedDict()
        self._bytes = 0

    def store(self, session: str, reply: Reply) -> None:
        """Store a session's last reply; drop the oldest stored replies if necessary."""
        self.discard(session)
        self._replies[session] = reply
        self._bytes += len(reply.body)
        while self._bytes > self._max_bytes:
            self.discard(next(iter(self._replies)))

    def get(self, session: str) -> Reply | None:
        """Return a session's last reply, unless it was dropped."""
        return self._replies.get(session)

    def discard(self, session: str) -> None:
        reply = self._replies.pop(session, None)
        if reply is not None:
            self._bytes -= len(reply.body)
