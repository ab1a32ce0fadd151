"""Large answers: how many bytes of them there may be, kept and under way."""

from __future__ import annotations

from collections import OrderedDict

from xuance_envs.remote.serving.byte_budget import ByteBudget
from xuance_envs.remote.serving.requests import Reply
from xuance_envs.remote.settings import Limits

__all__ = ["LARGE_REPLY", "LargeReplies"]

LARGE_REPLY = 64 * 2**10
"""Bytes of an answer from which on it counts."""


class LargeReplies:
    """The large answers of a server."""

    def __init__(self, limits: Limits) -> None:
        self.build_budget = ByteBudget(limits.replies, "large answers")
        self.send_budget = ByteBudget(limits.replies, "large answers")
        self._most = limits.kept
        self._kept: OrderedDict[str, Reply] = OrderedDict()
        self._bytes = 0

    def store(self, session: str, reply: Reply) -> None:
        """Keeps a session's last answer; those kept for longest make room for it."""
        self.discard(session)
        self._kept[session] = reply
        self._bytes += len(reply.body)
        while self._bytes > self._most:
            self.discard(next(iter(self._kept)))

    def get(self, session: str) -> Reply | None:
        """A session's last answer; None where it had to make room."""
        return self._kept.get(session)

    def discard(self, session: str) -> None:
        """Keeps it no longer; where there is none, it does nothing."""
        reply = self._kept.pop(session, None)
        if reply is not None:
            self._bytes -= len(reply.body)
