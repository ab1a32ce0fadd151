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

from xuance_envs.engine.process.doorbell import PeerGoneError
from xuance_envs.engine.ray.cluster import LostError, RayCluster
from xuance_envs.engine.ray.connection import Incoming, header
from xuance_envs.engine.ray.messages import Answer

__all__ = ["LOOK", "BrokenError", "Call", "Connection", "RaysCalls", "Way"]

LOOK = 1.0
"""Seconds between two looks at what Ray knows, while something else is waited for."""

TELLING = 30.0
"""Seconds that Ray has to tell what became of an actor whose connection has broken."""


class BrokenError(Exception):
    """The connection to an actor has broken, and the actor is still there."""


class Call:
    """A request to some of an actor's groups.

    Args:
        groups: those.
        request: what they are asked, as bytes.
        lent: what Ray knows objects by that they are lent.

    Attributes:
        groups (list[int]): as given.
        request (bytes): as given.
        lent (Sequence): as given.
        answers: by group, once the reply is there and in the arrays.
        by_ray (bool): whether it has been made as a call of Ray's.
        ref: what Ray knows it by then.
    """

    __slots__ = ("answers", "by_ray", "groups", "lent", "ref", "request")

    def __init__(self, groups: list[int], request: bytes, lent: Sequence[Any] = ()) -> None:
        self.groups = groups
        self.request = request
        self.lent = lent
        self.answers: dict[int, Answer] | None = None
        self.by_ray = False
        self.ref: Any = None


Take = Callable[[Call, "bytes | memoryview"], None]
"""Takes in the reply to a call."""


class Way(ABC):
    """One of the ways.

    Args:
        cluster: where the actor is.
        take: takes in replies.
    """

    def __init__(self, cluster: RayCluster, take: Take) -> None:
        self._cluster = cluster
        self._take = take

    @abstractmethod
    def send(self, call: Call) -> bool:
        """Sends a request; it is not sent twice, and one after the other.

        Returns:
            Whether all of it has been; if not, it is to be sent again.
        """

    @abstractmethod
    def receive(self, call: Call, seconds: float) -> None:
        """Waits until the reply to a call has been taken in.

        Raises:
            TimeoutError: it is not there in so many seconds.
            LostError: the actor is lost, or may be.
        """

    @abstractmethod
    def progresses(self, call: Call) -> bool:
        """Whether a reply is under way, of which more has come since this was last asked."""


class RaysCalls(Way):
    """Requests as calls of a method of the actor's.

    Args:
        cluster: where the actor is.
        take: takes in replies.
        answer: the method.
    """

    def __init__(self, cluster: RayCluster, take: Take, answer: Any) -> None:
        super().__init__(cluster, take)
        self._answer = answer

    def send(self, call: Call) -> bool:
        """See :class:`Way`; made again after an interrupt, the actor takes it for the same one."""
        if not call.by_ray:
            ref = self._cluster.call(self._answer, call.request, *call.lent)
            call.ref, call.by_ray = ref, True
        return True

    def receive(self, call: Call, seconds: float) -> None:
        """See :class:`Way`."""
        self._take(call, self._cluster.get(call.ref, seconds))

    def progresses(self, call: Call) -> bool:
        """See :class:`Way`: there may be a reply, which is still on its way here."""
        return bool(self._cluster.wait([call.ref], 1, 0.0))


class Connection(Way):
    """Requests by a connection, as long as that lasts.

    Args:
        cluster: where the actor is.
        take: takes in replies.
        connection: to the actor; owned by this object from now on.
        served: what Ray knows the actor's serving it by, which lasts as long.

    Attributes:
        served: as given.
    """

    def __init__(
        self, cluster: RayCluster, take: Take, connection: socket.socket, served: Any
    ) -> None:
        super().__init__(cluster, take)
        connection.setblocking(False)
        self._socket = connection
        self.served = served
        self._incoming = Incoming(connection)
        self._waiting = 0
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
    def word(self) -> Any:
        """What Ray knows by what it says of the actor, once the connection has broken."""
        return None if self._broken is None else self.served

    def send(self, call: Call) -> bool:
        """See :class:`Way`; where the actor does not read, it waits for a while only."""
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
            self._break(str(error))
        return True

    def _has_room(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(LOOK * 1e3))

    def receive(self, call: Call, seconds: float) -> None:
        """See :class:`Way`.

        Raises:
            BrokenError: the connection has broken, and the actor has not been lost.
        """
        end = monotonic() + seconds
        self.take_in()
        while call.answers is None:
            left = max(end - monotonic(), 0.0)
            if self._broken is not None:
                self._hear(*self._broken, left)
            elif self._poll(left * 1e3):
                self.read()
            elif self._cluster.wait([self.served], 1, 0.0):
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
            self._break(str(error))
        self.take_in()

    def take_in(self) -> None:
        """Takes in the replies that have been read, but for those nobody waits for any more."""
        while (message := self._incoming.first()) is not None:
            number, reply = message
            call = self._calls.get(number)
            if call is not None:
                self._take(call, reply)
                self._calls.pop(number)
            self._incoming.clear()

    def end(self) -> None:
        """Takes note that it is no longer served, of which a lost machine says nothing."""
        self._break("the actor serves it no longer")

    def _break(self, why: str) -> None:
        self._broken = self._broken or (why, monotonic())

    def _hear(self, why: str, since: float, seconds: float) -> None:
        """Waits for what Ray says of the actor.

        Raises:
            LostError: it is lost, or Ray does not know.
            BrokenError: it is not.
            TimeoutError: Ray has not said so yet.
        """
        try:
            self._cluster.get(self.served, seconds)
        except TimeoutError:
            if monotonic() < since + TELLING:
                raise
            raise LostError(
                f"nothing within {TELLING:g} s. The connection to it had broken: {why}"
            ) from None
        raise BrokenError(why)

    def progresses(self, call: Call) -> bool:
        """See :class:`Way`."""
        before, self._waiting = self._waiting, self._incoming.waiting
        return self._waiting not in (0, before)

    def close(self) -> None:
        """Ends it; again, it does nothing."""
        with suppress(OSError):  # which a forked process that has it, too, cannot keep from it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
