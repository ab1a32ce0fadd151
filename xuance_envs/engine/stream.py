"""Sending and receiving ends of pipes and sockets, which lose no data if interrupted.

No signal handler can run between a system call and the record of its result, because both are one
call in C (``list.extend(map(os.write, ...))``). Related attributes are assigned in one statement.
So every method can be called again after an interrupt.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from time import monotonic
from typing import Any

import numpy as np

from xuance_envs.engine.system.current import system

_LONGEST_POLL = 1e9  # milliseconds

BUFFER_BYTES = 1 << 16  # size of a receiver's buffer until it receives a larger message


class PeerGoneError(Exception):
    """The peer process has exited, or closed the pipe or socket."""


class Sender:
    """Sending end of a non-blocking pipe or socket; it holds one message."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._message = b""
        self._written: list[int] = []

    @property
    def _is_sent(self) -> bool:
        return sum(self._written) == len(self._message)

    def _write(self) -> bool:
        """Write as much of the message as fits; return whether it is written completely."""
        written = self._written
        rest = memoryview(self._message)[sum(written) :] if written else self._message
        try:
            written.extend(map(system.write, (self.fd,), (rest,)))
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        return written[-1] == len(rest)

    def _wait_for_room(self, deadline: float | None, *peer: int) -> None:
        """Wait until bytes fit, or until the descriptor ``peer`` reports that the peer exited."""
        poll = system.poll()
        poll.register(self.fd, system.POLLOUT)
        for fd in peer:
            poll.register(fd, system.POLLIN)
        ready = dict(poll.poll(milliseconds_until(deadline)))
        if not ready:
            raise TimeoutError
        if not ready.keys().isdisjoint(peer):
            raise PeerGoneError


class Receiver:
    """Receiving end of a pipe or socket; it keeps the first message until :meth:`clear`."""

    def __init__(
        self,
        fd: int,
        header: struct.Struct,
        with_header: Container[int] = range(256),
        max_kept: int = BUFFER_BYTES,
    ) -> None:
        self.fd = fd
        self._header = header  # its last field is the size of the data behind it
        self._with_header = with_header  # messages with other first bytes have only this byte
        self._max_kept = max_kept
        # Buffer of the next message's first bytes, and the arguments of the read.
        self._empty, self._room = self._new_buffer(BUFFER_BYTES)
        self._buffer = self._empty
        self._start = 0
        # Byte counts of the reads; their sum is the end of the data in the buffer.
        self.counts: list[int] = []

    def _new_buffer(self, size: int) -> tuple[memoryview, tuple[Any, ...]]:
        buffer = np.empty(size, np.uint8).data
        return buffer, self._room_in(buffer)

    def _room_in(self, buffer: memoryview) -> tuple[Any, ...]:
        """Return arguments for the built-in ``map``, which then reads bytes into this buffer."""
        return system.readv, (self.fd,), ((buffer,),)

    @property
    def num_unread(self) -> int:
        """Number of received bytes that :meth:`clear` has not removed."""
        return sum(self.counts) - self._start

    def _size(self, start: int, have: int) -> int:
        """Return the message size at an offset; a lower bound if the header is incomplete."""
        header = self._header
        if have and self._buffer[start] not in self._with_header:
            return 1
        size = int(header.unpack_from(self._buffer, start)[-1]) if have >= header.size else 0
        return header.size + size

    def whole(self) -> memoryview | None:
        """Return the first message, valid until :meth:`clear`, or None if it is incomplete."""
        start, have = self._start, self.num_unread
        size = self._size(start, have)
        return self._buffer[start : start + size] if have >= size else None

    def read(self) -> bool:
        """Read the bytes that are available; return whether there were any."""
        if counts := self.counts:
            room = self._make_room()
            counts = self.counts
        else:
            self._buffer, room = self._empty, self._room
        try:
            counts.extend(map(*room))
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        if not counts[-1]:
            counts.pop()
            raise PeerGoneError("the peer closed the connection")
        return True

    def _make_room(self) -> tuple[Any, ...]:
        """Make room in the buffer for the rest of the first message, or for further bytes."""
        end = sum(self.counts)
        have = end - self._start
        wanted = self._size(self._start, have)
        if end == len(self._buffer) or self._start + wanted > len(self._buffer):
            buffer, _ = self._new_buffer(max(BUFFER_BYTES, wanted, 2 * have))
            buffer[:have] = self._buffer[self._start : end]
            self._buffer, self._start, self.counts, end = buffer, 0, [have], have
        elif len(self.counts) > 1:
            self.counts = [end]
        return self._room_in(self._buffer[end:])

    def clear(self) -> None:
        """Remove the first message, which must be complete."""
        end = sum(self.counts)
        start = self._start + self._size(self._start, end - self._start)
        if start < end:
            self._start = start
            return
        empty, room = self._empty, self._room
        if len(self._buffer) > self._max_kept:
            empty, room = self._new_buffer(BUFFER_BYTES)
        elif self._buffer is not empty:
            empty, room = self._buffer, self._room_in(self._buffer)
        self._empty, self._room, self._start, self.counts = empty, room, 0, []


def milliseconds_until(deadline: float | None) -> float | None:
    """Return the time left as a timeout for :meth:`select.poll.poll`, at most its maximum."""
    if deadline is None:
        return None
    return min(max(0.0, (deadline - monotonic()) * 1e3), _LONGEST_POLL)
