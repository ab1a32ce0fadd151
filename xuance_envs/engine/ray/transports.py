"""Transports for an actor's requests and replies: direct connections and Ray calls.

Both ``send`` and ``receive`` may be interrupted at any time, and resume when called again.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.ray.authenticated_connection import MessageReader, header
from xuance_envs.engine.ray.cluster import RayCluster
from xuance_envs.engine.ray.messages import GroupReply
from xuance_envs.engine.system.current import system

POLL_INTERVAL = 1.0
"""Seconds between checks of Ray's references while a wait depends on something else."""


class ActorCall:
    """Request to one or more groups of an actor, and its reply."""

    __slots__ = ("answers", "buffers", "groups", "number", "ref", "request", "via_ray")

    def __init__(
        self, number: int, groups: list[int], request: bytes, buffers: Sequence[Any] = ()
    ) -> None:
        self.number = number
        self.groups = groups
        self.request = request
        self.buffers = buffers
        self.answers: dict[int, GroupReply] | None = None
        self.via_ray = False
        self.ref: Any = None


OnReply = Callable[[ActorCall, "bytes | memoryview"], None]
"""Callback that processes a call's reply."""


class Transport(ABC):
    def __init__(self, cluster: RayCluster, on_reply: OnReply) -> None:
        self._cluster = cluster
        self._on_reply = on_reply

    @abstractmethod
    def send(self, call: ActorCall) -> bool:
        """Send a call once; return False if this method must be called again to finish."""

    @abstractmethod
    def receive(self, call: ActorCall, seconds: float) -> None:
        """Wait until a call's reply has been processed, or the connection has broken."""

    @abstractmethod
    def has_progress(self, call: ActorCall) -> bool:
        """Return True if more of a reply has arrived since this method was last called."""


class RayTransport(Transport):
    def __init__(self, cluster: RayCluster, on_reply: OnReply, answer: Any) -> None:
        super().__init__(cluster, on_reply)
        self._answer = answer

    @override
    def send(self, call: ActorCall) -> bool:
        """Send a call; if an interrupt makes it repeat, the actor recognizes the number."""
        if not call.via_ray:
            ref = self._cluster.call(self._answer, call.number, call.request, *call.buffers)
            call.ref, call.via_ray = ref, True
        return True

    @override
    def receive(self, call: ActorCall, seconds: float) -> None:
        self._on_reply(call, self._cluster.get(call.ref, seconds))

    @override
    def has_progress(self, call: ActorCall) -> bool:
        return bool(self._cluster.wait([call.ref], 1, 0.0))


class SocketTransport(Transport):
    def __init__(
        self,
        cluster: RayCluster,
        on_reply: OnReply,
        connection: socket.socket,
        key: bytes,
        serve_ref: Any,
    ) -> None:
        super().__init__(cluster, on_reply)
        connection.setblocking(False)
        self._socket = connection
        self.key = key
        self.serve_ref = serve_ref
        self.broken: str | None = None
        self._incoming = MessageReader(connection)
        self._num_unread = 0
        # The unanswered calls by number; the last call, its message, and the sizes of its writes.
        self._calls: dict[int, ActorCall] = {}
        self._last: ActorCall | None = None
        self._message = b""
        self._written: list[int] = []
        poll = system.poll()
        poll.register(connection, system.POLLIN)
        self._poll = poll.poll

    @property
    def fd(self) -> int:
        """File descriptor that becomes readable when a reply arrives or the connection breaks."""
        return self._socket.fileno()

    @override
    def send(self, call: ActorCall) -> bool:
        """Send a call; return False if the actor reads nothing for POLL_INTERVAL seconds."""
        if call is not self._last:
            message = header(call.number, len(call.request)) + call.request
            calls = {**self._calls, call.number: call}
            # One statement without calls, so an interrupt cannot come halfway.
            self._last, self._calls, self._message, self._written = call, calls, message, []
        while self.broken is None and (start := sum(self._written)) < len(self._message):
            if not self._write(start) and not self._wait_writable():
                return False
        return True

    def _write(self, start: int) -> bool:
        """Write as much as the socket accepts; return False if it accepts nothing."""
        rest = memoryview(self._message)[start:]
        try:
            # In C, so no signal handler can run between the write and the append.
            self._written.extend(map(self._socket.send, (rest,)))
        except BlockingIOError:
            return False
        except OSError as error:
            self._mark_broken(str(error))
        return True

    def _wait_writable(self) -> bool:
        poll = system.poll()
        poll.register(self._socket, system.POLLOUT)
        return bool(poll.poll(POLL_INTERVAL * 1e3))

    @override
    def receive(self, call: ActorCall, seconds: float) -> None:
        end = monotonic() + seconds
        self.process_replies()
        while call.answers is None and self.broken is None:
            if self._poll(max(end - monotonic(), 0.0) * 1e3):
                self.read()
            elif self._cluster.wait([self.serve_ref], 1, 0.0):
                self.end()
            else:
                raise TimeoutError

    def read(self) -> None:
        try:
            self._incoming.read()
        except BlockingIOError:
            return
        except PeerGoneError as error:
            self._mark_broken(str(error))
        self.process_replies()

    def process_replies(self) -> None:
        """Process the complete replies that have been read."""
        while (message := self._incoming.first()) is not None:
            number, reply = message
            call = self._calls.get(number)
            if call is not None:
                self._on_reply(call, reply)
                self._calls.pop(number)
            self._incoming.clear()

    def end(self) -> None:
        """Mark the connection as broken; a node that loses power does not close it."""
        self._mark_broken("the actor stopped serving it")

    def _mark_broken(self, why: str) -> None:
        self.broken = self.broken or why

    @override
    def has_progress(self, call: ActorCall) -> bool:
        before, self._num_unread = self._num_unread, self._incoming.num_unread
        return self._num_unread not in (0, before)

    def close(self) -> None:
        with suppress(OSError):  # shutdown closes it even if a forked process holds it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
