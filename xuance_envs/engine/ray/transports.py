"""How requests come to an actor and its replies come back: by a connection, or as Ray's calls.

A call is sent, and received as often as it is wanted. Either half may be interrupted at any moment,
and goes on when it is done again.
"""

from __future__ import annotations

import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.ray.authenticated_connection import MessageReader, header
from xuance_envs.engine.ray.cluster import ActorLostError, RayCluster
from xuance_envs.engine.ray.messages import GroupReply

__all__ = [
    "POLL_INTERVAL",
    "Call",
    "ConnectionLostError",
    "RayTransport",
    "SocketTransport",
    "Transport",
]

POLL_INTERVAL = 1.0
"""Seconds between two looks at what Ray knows, while something else is waited for."""

DEATH_REPORT_TIMEOUT = 30.0
"""Seconds that Ray has to tell what became of an actor whose connection has broken."""


class ConnectionLostError(Exception):
    """The connection to an actor has broken, and the actor is still there."""


class Call:
    """A request to some of an actor's groups."""

    __slots__ = ("answers", "groups", "lent", "ref", "request", "via_ray")

    def __init__(self, groups: list[int], request: bytes, lent: Sequence[Any] = ()) -> None:
        self.groups = groups
        self.request = request
        self.lent = lent
        self.answers: dict[int, GroupReply] | None = None
        self.via_ray = False
        self.ref: Any = None


OnReply = Callable[[Call, "bytes | memoryview"], None]
"""Takes in the reply to a call."""


class Transport(ABC):
    """One of the ways."""

    def __init__(self, cluster: RayCluster, on_reply: OnReply) -> None:
        self._cluster = cluster
        self._on_reply = on_reply

    @abstractmethod
    def send(self, call: Call) -> bool:
        """Sends a request; it is not sent twice, and one after the other."""

    @abstractmethod
    def receive(self, call: Call, seconds: float) -> None:
        """Waits until the reply to a call has been taken in."""

    @abstractmethod
    def has_progress(self, call: Call) -> bool:
        """Whether a reply is under way, of which more has come since this was last asked."""


class RayTransport(Transport):
    """Requests as calls of a method of the actor's."""

    def __init__(self, cluster: RayCluster, on_reply: OnReply, answer: Any) -> None:
        super().__init__(cluster, on_reply)
        self._answer = answer

    def send(self, call: Call) -> bool:
        """See :class:`Transport`; made again after an interrupt, the actor takes it for the same one."""
        if not call.via_ray:
            ref = self._cluster.call(self._answer, call.request, *call.lent)
            call.ref, call.via_ray = ref, True
        return True

    @override
    def receive(self, call: Call, seconds: float) -> None:
        self._on_reply(call, self._cluster.get(call.ref, seconds))

    def has_progress(self, call: Call) -> bool:
        """See :class:`Transport`: there may be a reply, which is still on its way here."""
        return bool(self._cluster.wait([call.ref], 1, 0.0))


class SocketTransport(Transport):
    """Requests by a connection, as long as that lasts."""

    def __init__(
        self, cluster: RayCluster, on_reply: OnReply, connection: socket.socket, serve_ref: Any
    ) -> None:
        super().__init__(cluster, on_reply)
        connection.setblocking(False)
        self._socket = connection
        self.serve_ref = serve_ref
        self._incoming = MessageReader(connection)
        self._num_unread = 0
        # By number, those that have not been answered; and the last one, with how much is written.
        self._calls: dict[int, Call] = {}
        self._last: Call | None = None
        self._number = 0
        self._message = b""
        self._written: list[int] = []
        # Why it broke, and when.
        self._broken: tuple[str, float] | None = None
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        self._poll = poll.poll

    @property
    def fd(self) -> int:
        """What turns readable when a reply comes, or the connection breaks."""
        return self._socket.fileno()

    @property
    def status_ref(self) -> Any:
        """What Ray knows by what it says of the actor, once the connection has broken."""
        return None if self._broken is None else self.serve_ref

    def send(self, call: Call) -> bool:
        """See :class:`Transport`; where the actor does not read, it waits for a while only."""
        if call is not self._last:
            number = self._number + 1
            message = header(number, len(call.request)) + call.request
            calls = {**self._calls, number: call}
            # No call in between, so that an interrupt finds either the old one or the new one.
            self._last, self._number, self._calls = call, number, calls
            self._message, self._written = message, []
        while self._broken is None and (start := sum(self._written)) < len(self._message):
            if not self._write(start) and not self._has_room():
                return False
        return True

    def _write(self, start: int) -> bool:
        """Writes what there is room for; returns whether there was any."""
        rest = memoryview(self._message)[start:]
        try:
            # Both in C: no signal's exception can come between the write and the append.
            self._written.extend(map(self._socket.send, (rest,)))
        except BlockingIOError:
            return False
        except OSError as error:
            self._mark_broken(str(error))
        return True

    def _has_room(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(POLL_INTERVAL * 1e3))

    def receive(self, call: Call, seconds: float) -> None:
        """See :class:`Transport`."""
        end = monotonic() + seconds
        self.process_replies()
        while call.answers is None:
            left = max(end - monotonic(), 0.0)
            if self._broken is not None:
                self._await_status(*self._broken, left)
            elif self._poll(left * 1e3):
                self.read()
            elif self._cluster.wait([self.serve_ref], 1, 0.0):
                self.end()
            else:
                raise TimeoutError

    def read(self) -> None:
        """Reads what has come, and takes it in."""
        try:
            self._incoming.read()
        except BlockingIOError:
            return
        except PeerGoneError as error:
            self._mark_broken(str(error))
        self.process_replies()

    def process_replies(self) -> None:
        """Takes in the replies that have been read, but for those nobody waits for any more."""
        while (message := self._incoming.first()) is not None:
            number, reply = message
            call = self._calls.get(number)
            if call is not None:
                self._on_reply(call, reply)
                self._calls.pop(number)
            self._incoming.clear()

    def end(self) -> None:
        """Takes note that it is no longer served, of which a lost machine says nothing."""
        self._mark_broken("the actor serves it no longer")

    def _mark_broken(self, why: str) -> None:
        self._broken = self._broken or (why, monotonic())

    def _await_status(self, why: str, since: float, seconds: float) -> None:
        """Waits for what Ray says of the actor."""
        try:
            self._cluster.get(self.serve_ref, seconds)
        except TimeoutError:
            if monotonic() < since + DEATH_REPORT_TIMEOUT:
                raise
            raise ActorLostError(
                f"nothing within {DEATH_REPORT_TIMEOUT:g} s. The connection to it had broken: {why}"
            ) from None
        raise ConnectionLostError(why)

    @override
    def has_progress(self, call: Call) -> bool:
        before, self._num_unread = self._num_unread, self._incoming.num_unread
        return self._num_unread not in (0, before)

    def close(self) -> None:
        """Ends it; again, it does nothing."""
        with suppress(OSError):  # which a forked process that has it, too, cannot keep from it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
