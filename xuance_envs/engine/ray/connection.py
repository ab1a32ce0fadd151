"""Messages of direct connections, and the main process's side of a connection.

A header with a number and a size precedes each message. An interrupted method of
:class:`DirectConnection` continues when it is called again.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs.engine.stream import PeerGoneError, Receiver, Sender
from xuance_envs.engine.system.current import system

SEND_TIMEOUT = 1.0  # seconds to wait until the actor reads more of a request

_HEADER = struct.Struct("<QQ")
_MAX_KEPT_BYTES = 1 << 26  # maximum size of a message buffer that is reused for the next message
_MAX_PARTS = 512  # maximum number of buffers in one write; operating systems have a limit


def header(number: int, size: int) -> bytes:
    return _HEADER.pack(number, size)


def send_message(connection: socket.socket, number: int, parts: Sequence[Any]) -> None:
    """Send a message through a blocking socket."""
    size = sum([memoryview(part).nbytes for part in parts])
    whole = [header(number, size), *parts]
    if len(whole) > _MAX_PARTS:
        whole = [b"".join(whole)]
    try:
        sent = system.send_parts(connection, whole)
        if sent < _HEADER.size + size:
            connection.sendall(b"".join(whole)[sent:])
    except OSError as error:
        raise PeerGoneError(str(error)) from error


class MessageReader(Receiver):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.fileno(), _HEADER, max_kept=_MAX_KEPT_BYTES)

    def first(self) -> tuple[int, memoryview] | None:
        """Return number and content of the first message, valid until :meth:`clear`, or None."""
        if (message := self.whole()) is None:
            return None
        return _HEADER.unpack_from(message)[0], message[_HEADER.size :]


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
            message = header(number, len(request)) + request
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
        """Record the connection's end; a node that loses power cannot close its connections."""
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
