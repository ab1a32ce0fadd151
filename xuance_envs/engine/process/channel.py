"""Messages between two processes: one byte on a pipe, optionally followed by a payload.

:mod:`~xuance_envs.engine.group.protocol` defines the bytes. A payload is preceded by its
length in eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.stream import PeerGoneError, Receiver, Sender, milliseconds_until
from xuance_envs.engine.system.current import system

_HEADER = struct.Struct("<Bq")
_DRAIN_BYTES = 1 << 16

_CODE_BYTES = {code: bytes([code]) for code in (*RequestType, *ReplyType)}
_WITH_PAYLOAD = frozenset(
    {RequestType.CALL, RequestType.GROUP, RequestType.BUFFERS}
    | {ReplyType.OUTCOME, ReplyType.VALUE, ReplyType.FAILED}
)

_Poll = Callable[[float | None], Sequence[tuple[int, int]]]


def frame(code: RequestType | ReplyType, payload: bytes = b"") -> bytes:
    if code in _WITH_PAYLOAD:
        return _HEADER.pack(code, len(payload)) + payload
    return _CODE_BYTES[code]


STEP = frame(RequestType.STEP)


def write_all(fd: int, message: bytes) -> None:
    try:
        written = system.write(fd, message)
        while written < len(message):
            written += system.write(fd, memoryview(message)[written:])
    except OSError as error:
        raise PeerGoneError(str(error)) from error


def _poll_of(*fds: int) -> _Poll:
    poll = system.poll()
    for fd in fds:
        poll.register(fd, system.POLLIN)
    return poll.poll


class Inbox(Receiver):
    """Receiving end of a pipe. If messages usually arrive soon, it spins before it blocks."""

    def __init__(
        self, fd: int, peer: int | None = None, spin: float = 0.0, expect_ready: bool = False
    ) -> None:
        super().__init__(fd, _HEADER, _WITH_PAYLOAD)
        system.set_blocking(fd, False)
        self._peer = peer
        self._max_spin = spin
        self._spin = spin
        self._gap = 0.0
        self._expect_ready = expect_ready
        self._poll = _poll_of(*[fd] if peer is None else [fd, peer])
        self._polls_with: dict[int, _Poll] = {}

    def wait_with(self, other: int) -> bool:
        """Wait for a message or for another descriptor; return whether there is a message."""
        if self.counts:
            return True
        poll = self._polls_with.get(other)
        if poll is None:
            poll = self._polls_with[other] = _poll_of(self.fd, other)
        return any(fd == self.fd for fd, _ in self._wait(poll, None))

    def receive(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Wait for a message; further calls return it again until :meth:`clear`."""
        if not self.counts and not (self._expect_ready and self.read()):
            self._wait(self._poll, deadline)
            self._read(deadline)
        code = self._buffer[self._start]
        if code not in _WITH_PAYLOAD:
            return code, b""
        while (message := self.whole()) is None:
            self._read(deadline)
        return code, bytes(message[_HEADER.size :])

    def take(self) -> tuple[int, bytes]:
        """Wait for a message and remove it."""
        message = self.receive()
        if self.counts == [1]:
            self.counts = []
        else:
            self.clear()
        return message

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        self._room = self._room_in(self._empty)  # a call that still waits must not read this number
        system.close(fd)

    def _wait(self, poll: _Poll, deadline: float | None) -> Sequence[tuple[int, int]]:
        """Spin, then block until a descriptor is ready or the deadline passes."""
        if not self._max_spin:
            return poll(milliseconds_until(deadline))
        start = now = perf_counter()
        end = start + self._spin
        while now < end:
            if events := poll(0):
                break
            system.yield_cpu()  # the peer may need this CPU
            now = perf_counter()
        else:
            events = poll(milliseconds_until(deadline))
            now = perf_counter()
        # Limit the weight of one long gap, such as an evaluation between two rollouts.
        self._gap += (min(now - start, 4 * self._max_spin) - self._gap) / 8
        self._spin = self._max_spin if self._gap < self._max_spin else 0.0
        return events

    def _read(self, deadline: float | None) -> None:
        """Wait until bytes are available and read them, even if their sender has ended."""
        while not self.read():
            ready = dict(self._poll(milliseconds_until(deadline)))
            if not ready:
                raise TimeoutError
            if self.fd not in ready:
                raise PeerGoneError


class Channel(Sender):
    """Main process's side of a worker's pipes; interrupted methods can be called again."""

    def __init__(
        self, requests: int, replies: int, peer: int, spin: float, expect_ready: bool = False
    ) -> None:
        super().__init__(requests)
        system.set_blocking(requests, False)
        self.tag = 0
        self._peer = peer
        self._inbox = Inbox(replies, peer, spin, expect_ready)
        self._has_reply = self._sent = True
        self._wait_code: Callable[[float | None], int] | None = None

    def send(self, message: bytes, tag: int, deadline: float | None = None) -> None:
        """Send a request; if the previous reply is outstanding, wait for it first and drop it."""
        if not self._has_reply:  # after an interrupt or another worker's error
            self.wait_reply(deadline)
        inbox = self._inbox
        # No call in between, so that an interrupt finds either the old request or the new one.
        self.tag, self._message, self._has_reply, self._sent = tag, message, False, False
        self._written, inbox.counts, self._wait_code = [], [], None
        self._sent = self._write()
        if not self._sent:
            self._flush(deadline)

    def join(
        self, tag: int, wait_code: Callable[[float | None], int], deadline: float | None
    ) -> None:
        """Record a request sent by a wake-up; ``wait_code`` returns 0 if the pipe has the reply."""
        if not self._has_reply:
            self.wait_reply(deadline)
        inbox = self._inbox
        # No call in between, as in send.
        self.tag, self._message, self._has_reply, self._sent = tag, b"", False, True
        self._written, inbox.counts, self._wait_code = [], [], wait_code

    def has_joined(self, tag: int) -> bool:
        return self.tag == tag and self._wait_code is not None

    def has_reply_to(self, tag: int, message: bytes) -> bool:
        return self.tag == tag and self._has_reply and self._message == message

    def wait_reply(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Wait for the reply to the last request; repeated calls return the same reply."""
        if self._wait_code is not None and (code := self._wait_code(deadline)):
            self._has_reply = True
            return code, b""
        if not self._sent:  # after an interrupt or a timeout in send()
            self._flush(deadline)
        reply = self._inbox.receive(deadline)
        self._has_reply = True
        return reply

    def _flush(self, deadline: float | None) -> None:
        while not self._is_sent:
            if not self._write():
                self._wait_for_room(deadline, self._peer)
        self._sent = True

    @property
    def replies(self) -> int:
        """Read end of the pipe from the worker."""
        return self._inbox.fd

    def receive_available(self) -> int:
        """Read the available bytes; return the number of bytes of the reply received so far."""
        with suppress(PeerGoneError):  # wait_reply raises it
            self._inbox.read()
        return self._inbox.num_unread

    @property
    def received(self) -> int:
        """Number of bytes of the reply received so far."""
        return self._inbox.num_unread

    def request_close(self) -> None:
        """Ask the worker to end after its current request."""
        if self._is_sent:
            # If this fails, the worker has ended, or its pipe is full and the worker is terminated.
            with suppress(OSError):
                system.write(self.fd, frame(RequestType.CLOSE))
        else:  # after a partial message, closing the pipe is the only possible signal
            self._close_requests()

    def drain(self) -> None:
        with suppress(BlockingIOError):
            system.read(self._inbox.fd, _DRAIN_BYTES)

    def close(self) -> None:
        self._close_requests()
        self._inbox.close()

    def _close_requests(self) -> None:
        if self.fd >= 0:
            system.close(self.fd)
            self.fd = -1
