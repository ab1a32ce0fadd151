"""The main process's end of a direct connection to an actor.

Every method may be interrupted at any time, and continues when it is called again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.ray.authenticated_connection import MessageReader, header
from xuance_envs.engine.system.current import system

SEND_TIMEOUT = 1.0
"""Seconds to wait until the actor reads more of a request."""


class DirectConnection:
    """Connection that carries numbered requests and their replies.

    Args:
        connection: the authenticated socket.
        key: key of the connection.
        serve_ref: Ray's reference to the actor's call that serves the connection.
    """

    def __init__(self, connection: socket.socket, key: bytes, serve_ref: Any) -> None:
        connection.setblocking(False)
        self._socket = connection
        self.key = key
        self.serve_ref = serve_ref
        self.broken: str | None = None
        self._incoming = MessageReader(connection)
        self._num_unread = 0
        # The last request's number, its message, and the sizes of its writes.
        self._number = 0
        self._message = b""
        self._written: list[int] = []

    @property
    def fd(self) -> int:
        """File descriptor that becomes readable when a reply arrives or the connection breaks."""
        return self._socket.fileno()

    def send(self, number: int, request: bytes) -> bool:
        """Send a request; return False if the actor reads nothing for SEND_TIMEOUT seconds."""
        if number != self._number:
            message = header(number, len(request)) + request
            # One statement without calls, so an interrupt cannot come halfway.
            self._number, self._message, self._written = number, message, []
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
            self.mark_broken(str(error))
        return True

    def _wait_writable(self) -> bool:
        poll = system.poll()
        poll.register(self._socket, system.POLLOUT)
        return bool(poll.poll(SEND_TIMEOUT * 1e3))

    def read(self) -> None:
        """Read the bytes that are available."""
        try:
            self._incoming.read()
        except BlockingIOError:
            pass
        except PeerGoneError as error:
            self.mark_broken(str(error))

    def replies(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the complete replies that have been read, with their requests' numbers.

        A reply is yielded again if an interrupt comes before the next one is requested.
        """
        while (message := self._incoming.first()) is not None:
            yield message
            self._incoming.clear()

    def mark_broken(self, why: str) -> None:
        """Record that the connection has ended; a node that loses power does not close it."""
        self.broken = self.broken or why

    def has_progress(self) -> bool:
        """Return True if more of a reply has arrived since this method was last called."""
        before, self._num_unread = self._num_unread, self._incoming.num_unread
        return self._num_unread not in (0, before)

    def close(self) -> None:
        with suppress(OSError):  # shutdown closes it even if a forked process holds it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
