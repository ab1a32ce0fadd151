"""Signals between two processes: one byte on a pipe, and a payload behind it when there is one.

Which bytes there are, and who may say what, is in :mod:`~xuance_envs.engine.group.protocol`. A
payload has its length before it, as eight bytes.
"""

from __future__ import annotations

import os
import select
import struct
from contextlib import suppress
from time import perf_counter

from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.polling import milliseconds_until

__all__ = ["Channel", "Inbox", "PeerGoneError", "frame", "write_all"]

_LENGTH = struct.Struct("<q")
_HEADER = 1 + _LENGTH.size
_SMALL_READ, _LARGE_READ = 256, 1 << 16
"""Bytes to make room for where little is expected, and where there is more."""

_CODE_BYTES = {code: bytes([code]) for code in (*RequestType, *ReplyType)}
_WITH_PAYLOAD = frozenset(
    {
        RequestType.CALL,
        RequestType.GROUP,
        RequestType.BUFFERS,
        ReplyType.OUTCOME,
        ReplyType.VALUE,
        ReplyType.FAILED,
    }
)


class PeerGoneError(Exception):
    """The process at the other end of the pipe has ended, or closed its end."""


def frame(code: RequestType | ReplyType, payload: bytes = b"") -> bytes:
    """A message as it goes through the pipe."""
    code_byte = _CODE_BYTES[code]
    return code_byte + _LENGTH.pack(len(payload)) + payload if code in _WITH_PAYLOAD else code_byte


def write_all(fd: int, message: bytes) -> None:
    """Writes a message to a blocking pipe."""
    try:
        written = os.write(fd, message)
        while written < len(message):
            written += os.write(fd, memoryview(message)[written:])
    except OSError as error:
        raise PeerGoneError from error


class Inbox:
    """The receiving end of a pipe, which holds one message at a time.

    Waiting spins for a while before it blocks, because waking a blocked process costs more
    than a short wait. Whether it does is learned from the gaps between messages: when they are
    usually longer than the bound, spinning would be wasted.
    """

    def __init__(
        self, fd: int, peer: int | None = None, spin: float = 0.0, expect_ready: bool = False
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._read_small, self._read_large = ((fd,), (_SMALL_READ,)), ((fd,), (_LARGE_READ,))
        self.parts: list[bytes] = []
        self._size = 0
        self._peer = peer
        self._max_spin = spin
        self._spin = spin
        self._gap = 0.0
        self._expect_ready = expect_ready
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if peer is not None:
            poll.register(peer, select.POLLIN)
        self._poll = poll.poll

    def clear(self) -> None:
        """Forgets the message, so that the next one can come; what came behind it is kept."""
        if sum(map(len, self.parts)) > self._size:
            self.parts = [b"".join(self.parts)[self._size :]]
        else:
            self.parts = []

    def receive(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Waits for a message. It stays here, and can be received again, until it is cleared.

        So nothing is lost when a signal's exception, such as KeyboardInterrupt, ends the wait.
        """
        parts = self.parts
        if not parts and not (self._expect_ready and self._read_at_once()):
            if self._max_spin:
                self._spin_or_block(deadline)
            else:
                self._poll(milliseconds_until(deadline))
            self._read(deadline)
        code = parts[0][0]
        if code in _WITH_PAYLOAD:
            return code, self._payload(deadline)
        self._size = 1
        return code, b""

    def _payload(self, deadline: float | None) -> bytes:
        parts = self.parts
        size, wanted = sum(map(len, parts)), 0
        while True:
            if not wanted and size >= _HEADER:
                wanted = _HEADER + int(_LENGTH.unpack_from(b"".join(parts), 1)[0])
            if wanted and size >= wanted:
                self._size = wanted
                return b"".join(parts)[_HEADER:wanted]
            self._read(deadline)
            size += len(parts[-1])

    def _spin_or_block(self, deadline: float | None) -> None:
        start = now = perf_counter()
        end = start + self._spin
        poll = self._poll
        while now < end:
            if poll(0):
                break
            os.sched_yield()  # the caller may be waiting for this very CPU
            now = perf_counter()
        else:
            poll(milliseconds_until(deadline))
            now = perf_counter()
        # One long gap, such as an evaluation between two rollouts, must not weigh much.
        self._gap += (min(now - start, 4 * self._max_spin) - self._gap) / 8
        self._spin = self._max_spin if self._gap < self._max_spin else 0.0

    def _read(self, deadline: float | None) -> None:
        """Reads what is there, and waits if nothing is.

        What the other process sent before it ended is still read.
        """
        while not self._read_at_once():
            ready = dict(self._poll(milliseconds_until(deadline)))
            if not ready:
                raise TimeoutError
            if self.fd not in ready:
                raise PeerGoneError

    def _read_at_once(self) -> bool:
        """Reads what is there; returns whether anything was."""
        try:
            # Both in C: no signal's exception can come between the read and the append.
            self.parts.extend(map(os.read, *(self._read_large if self.parts else self._read_small)))
        except BlockingIOError:
            return False
        if not self.parts[-1]:
            self.parts.pop()
            raise PeerGoneError
        return True


class Channel:
    """The caller's side of a worker's two pipes: asks, and waits for the answer.

    Both halves can be repeated after a signal's exception interrupted them, and go on then.
    """

    def __init__(
        self, requests: int, replies: int, peer: int, spin: float, expect_ready: bool = False
    ) -> None:
        os.set_blocking(requests, False)
        self.tag = 0
        self._requests = requests
        self._peer = peer
        self._inbox = Inbox(replies, peer, spin, expect_ready)
        self._message = b""
        self._has_reply = self._sent = True
        self._written: list[int] = []

    def send(self, message: bytes, tag: int, deadline: float | None = None) -> None:
        """Sends a request, once the last one has been answered; that answer is forgotten."""
        if not self._has_reply:  # an interrupt came before, or an error of another worker
            self.wait_reply(deadline)
        inbox = self._inbox
        # No call in between, so that an interrupt finds either the old request or the new one.
        self.tag, self._message, self._has_reply, self._sent = tag, message, False, False
        self._written, inbox.parts = [], []
        if not self._write(message) or self._written[0] < len(message):
            self._flush(deadline)
        self._sent = True

    def wait_reply(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Waits for the reply to the last request, and gives it as often as it is asked to."""
        if not self._sent:  # an interrupt came before, or its deadline
            self._flush(deadline)
            self._sent = True
        answer = self._inbox.receive(deadline)
        self._has_reply = True
        return answer

    def _flush(self, deadline: float | None) -> None:
        message = memoryview(self._message)
        while (start := sum(self._written)) < len(message):
            if not self._write(message[start:]):
                self._wait_for_room(deadline)

    def _write(self, data: bytes | memoryview) -> bool:
        """Writes what the pipe has room for; returns whether it had any."""
        try:
            # Both in C: no signal's exception can come between the write and the append.
            self._written.extend(map(os.write, (self._requests,), (data,)))
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerGoneError from error
        return True

    def _wait_for_room(self, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLOUT)
        poll.register(self._peer, select.POLLIN)
        ready = dict(poll.poll(milliseconds_until(deadline)))
        if not ready:
            raise TimeoutError
        if self._peer in ready:
            raise PeerGoneError

    @property
    def replies(self) -> int:
        """The read end of the pipe from the worker."""
        return self._inbox.fd

    @property
    def received(self) -> int:
        """How many bytes of the answer have come."""
        return sum(map(len, self._inbox.parts))

    def request_close(self) -> None:
        """Tells the worker to end when it is done with the request it is at."""
        if sum(self._written) == len(self._message):
            with suppress(OSError):  # it has ended already, or is so far behind that it must be
                os.write(self._requests, frame(RequestType.CLOSE))
        else:  # within a message nothing can be said but that there is no more
            self._close_requests()

    def drain(self) -> None:
        """Throws away what the worker says."""
        with suppress(BlockingIOError):
            os.read(self._inbox.fd, _LARGE_READ)

    def close(self) -> None:
        """Closes the pipes."""
        self._close_requests()
        os.close(self._inbox.fd)

    def _close_requests(self) -> None:
        if self._requests >= 0:
            os.close(self._requests)
            self._requests = -1
