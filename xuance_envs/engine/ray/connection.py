"""Direct connections between the main process and an actor: messages, and both sides.

A header with a number and a size precedes each message. An interrupted method of
:class:`DirectConnection` continues when it is called again.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from xuance_envs.engine.ray.messages import num_requests
from xuance_envs.engine.stream import PeerGoneError, Receiver, Sender
from xuance_envs.engine.system.current import system

SEND_TIMEOUT = 1.0  # seconds to wait until the actor reads more of a request
END_POLL_INTERVAL = 1.0  # seconds between an actor's checks for the end of an idle connection

HEADER = struct.Struct("<QQ")
_MAX_KEPT_BYTES = 1 << 26  # maximum size of a message buffer that is reused for the next message
_MAX_PARTS = 512  # maximum number of buffers in one write; operating systems have a limit


def send_message(connection: socket.socket, number: int, parts: Sequence[Any]) -> None:
    """Send a message through a blocking socket."""
    size = sum([memoryview(part).nbytes for part in parts])
    whole = [HEADER.pack(number, size), *parts]
    if len(whole) > _MAX_PARTS:
        whole = [b"".join(whole)]
    try:
        sent = system.send_parts(connection, whole)
        if sent < HEADER.size + size:
            connection.sendall(b"".join(whole)[sent:])
    except OSError as error:
        raise PeerGoneError(str(error)) from error


class MessageReader(Receiver):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.fileno(), HEADER, max_kept=_MAX_KEPT_BYTES)

    def first(self) -> tuple[int, memoryview] | None:
        """Return number and content of the first message, valid until :meth:`clear`, or None."""
        if (message := self.whole()) is None:
            return None
        return HEADER.unpack_from(message)[0], message[HEADER.size :]


class DirectConnection(Sender):
    """Connection for numbered requests and replies; ``serve_ref`` is the actor's Ray task."""

    def __init__(self, connection: socket.socket, key: bytes, serve_ref: Any) -> None:
        super().__init__(connection.fileno())
        connection.setblocking(False)
        self._socket = connection
        self.key = key
        self.serve_ref = serve_ref
        self.broken: str | None = None
        self._incoming = MessageReader(connection)
        self._number = 0  # of the last request

    def send(self, number: int, request: bytes) -> bool:
        """Send a request; return False if the actor reads nothing for SEND_TIMEOUT seconds."""
        if number != self._number:
            message = HEADER.pack(number, len(request)) + request
            # One statement without calls, so an interrupt cannot come halfway.
            self._number, self._message, self._written = number, message, []
        try:
            while self.broken is None and not self._is_sent:
                if not self._write():
                    self._wait_for_room(monotonic() + SEND_TIMEOUT)
        except TimeoutError:
            return False
        except PeerGoneError as error:
            self.mark_broken(str(error))
        return True

    def read(self) -> None:
        try:
            if self.fd >= 0:  # otherwise another file may have the descriptor now
                self._incoming.read()
        except PeerGoneError as error:
            self.mark_broken(str(error))

    def replies(self) -> Iterator[tuple[int, memoryview]]:
        """Yield complete replies with their numbers; after an interrupt, the last one again."""
        while (message := self._incoming.first()) is not None:
            yield message
            self._incoming.clear()

    def mark_broken(self, why: str) -> None:
        """Record the end of the connection, which a node that loses power cannot report."""
        self.broken = self.broken or why

    @property
    def num_unread(self) -> int:
        """Number of received bytes of incomplete replies."""
        return self._incoming.num_unread

    def close(self) -> None:
        with suppress(OSError):  # shutdown closes it even if a forked process holds it
            self._socket.shutdown(socket.SHUT_RDWR)
        self.fd = -1
        self._socket.close()


@dataclass(eq=False)
class ConnectionServer:
    """Actor's side of a direct connection."""

    _connection: socket.socket
    _answer: Callable[[int, bytes], Sequence[Any]]
    _num_groups: int
    _is_ended: Callable[[], bool]
    _closed: threading.Event = field(default_factory=threading.Event)
    _number: int = 0
    _reply_lock: threading.Lock = field(default_factory=threading.Lock)
    _failures: Sequence[BaseException] = ()

    def run(self) -> None:
        """Answer requests until the connection ends."""
        with ThreadPoolExecutor(self._num_groups + 1) as pool:
            pool.submit(self._watch)
            try:
                with suppress(PeerGoneError):
                    self._answer_requests(pool)
            finally:
                self._closed.set()
                self._shut_down()  # a thread may be waiting to send
        if self._failures:
            raise self._failures[0]

    def _answer_requests(self, pool: ThreadPoolExecutor) -> None:
        incoming = MessageReader(self._connection)
        while True:
            while (message := incoming.first()) is None:
                incoming.read()
            self._number, request = message[0], bytes(message[1])
            incoming.clear()
            if num_requests(request) == self._num_groups:  # no other request can be pending
                self._reply(self._number, request)
            else:
                pool.submit(self._reply_in_thread, self._number, request)

    def _watch(self) -> None:
        """Shut down a connection that the peer has ended, to wake threads that use it."""
        number = -1
        while not self._closed.wait(END_POLL_INTERVAL):
            if number == self._number and (
                system.is_closed_by_peer(self._connection) or self._is_ended()
            ):
                self._shut_down()
            number = self._number

    def _reply(self, number: int, request: bytes) -> None:
        parts = self._answer(number, request)
        with self._reply_lock:
            send_message(self._connection, number, parts)

    def _reply_in_thread(self, number: int, request: bytes) -> None:
        try:
            self._reply(number, request)
        except BaseException as error:
            if not isinstance(error, PeerGoneError):
                self._failures = (*self._failures, error)
            self._shut_down()

    def _shut_down(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
