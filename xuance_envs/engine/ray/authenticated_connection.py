"""Authenticated connections between the main process and its actors.

Both sides prove that they know a key before either of them parses anything else. A header with a
number and a length precedes each message.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np

from xuance_envs.engine.process.channel import PeerGoneError
from xuance_envs.engine.system.current import system

_HEADER = struct.Struct("<QQ")
_BUFFER_BYTES = 1 << 16
_MAX_KEPT_BYTES = 1 << 26
"""Maximum size of a message buffer that is reused for the next message."""

_MAX_PARTS = 512
"""Maximum number of buffers in one write; operating systems have a limit."""

_NONCE = _PROOF = 32
_MAX_CALLERS = 128
"""Maximum number of peers that authenticate at the same time; a further one replaces the oldest."""

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Settings of keep-alive probes, which prevent idle disconnects and detect failed machines."""

_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_after_fork() -> None:
    """Prevent a forked process from using its parent's connections."""
    for connection in list(_open_sockets):
        connection.close()


system.after_fork(_close_after_fork)


class AuthenticationError(Exception):
    """The peer failed authentication."""


class Listener:
    """Listening socket of an actor that accepts one authenticated connection."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_MAX_CALLERS)
        self._socket.setblocking(False)
        _open_sockets.add(self._socket)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.key = secrets.token_bytes(32)

    def accept(self, seconds: float) -> socket.socket:
        """Wait for an authenticated peer; stop listening afterwards, even after a timeout.

        Peers authenticate concurrently, so that none of them delays the others.
        """
        deadline = monotonic() + seconds
        callers: list[_Caller] = []  # the oldest first
        with self._socket, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            try:
                while (left := deadline - monotonic()) > 0:
                    for entry, _ in selector.select(left):
                        if entry.data is None:
                            with suppress(BlockingIOError, ConnectionError):
                                callers.append(_Caller(self._socket.accept()[0], self.key))
                                selector.register(
                                    callers[-1].socket, selectors.EVENT_READ, callers[-1]
                                )
                        elif entry.data.authenticate():
                            callers.remove(entry.data)
                            return _configure(entry.data.socket)
                    for caller in callers[:]:
                        if caller.refused or len(callers) > _MAX_CALLERS:
                            selector.unregister(caller.socket)
                            caller.socket.close()
                            callers.remove(caller)
            finally:
                for caller in callers:
                    caller.socket.close()
        raise TimeoutError


class _Caller:
    """Peer of a listener that has not authenticated itself yet."""

    def __init__(self, peer: socket.socket, key: bytes) -> None:
        peer.setblocking(False)
        self.socket = peer
        self.refused = False
        self._key = key
        self._nonce = secrets.token_bytes(_NONCE)
        self._received = b""
        with suppress(OSError):
            peer.sendall(self._nonce)

    def authenticate(self) -> bool:
        """Read the bytes that have arrived; return True if they complete the proof."""
        try:
            more = self.socket.recv(_NONCE + _PROOF - len(self._received))
            self._received += more
            self.refused = not more
            if len(self._received) < _NONCE + _PROOF:
                return False
            peer_nonce, proof = self._received[:_NONCE], self._received[_NONCE:]
            _check(proof, self._key, b"caller", self._nonce + peer_nonce)
            self.socket.sendall(_proof(self._key, b"actor", self._nonce + peer_nonce))
        except BlockingIOError:
            return False
        except (OSError, AuthenticationError):
            self.refused = True
            return False
        return True


def connect_authenticated(
    address: tuple[str, int], key: bytes, deadline: float, on_connected: Any
) -> socket.socket:
    """Connect to an actor; ``on_connected`` is called as soon as the connection exists."""
    connection = socket.create_connection(address, _remaining(deadline))
    try:
        on_connected()
        _authenticate_actor(connection, key, deadline)
        return _configure(connection)
    except BaseException:
        connection.close()
        raise


def _authenticate_actor(peer: socket.socket, key: bytes, deadline: float) -> None:
    peer_nonce = _recv_exactly(peer, _NONCE, deadline)
    nonce = secrets.token_bytes(_NONCE)
    peer.sendall(nonce + _proof(key, b"caller", peer_nonce + nonce))
    _check(_recv_exactly(peer, _PROOF, deadline), key, b"actor", peer_nonce + nonce)


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


def _check(proof: bytes, key: bytes, side: bytes, nonces: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(key, side, nonces)):
        raise AuthenticationError("the peer failed authentication: wrong key")


def _recv_exactly(peer: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        peer.settimeout(_remaining(deadline))
        more = peer.recv(size - len(data))
        if not more:
            raise AuthenticationError("the peer closed the connection during authentication")
        data += more
    return data


def _remaining(deadline: float) -> float:
    return max(deadline - monotonic(), 1e-3)


def _configure(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        with suppress(AttributeError, OSError):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    _open_sockets.add(connection)
    return connection


def header(number: int, size: int) -> bytes:
    return _HEADER.pack(number, size)


def send_message(connection: socket.socket, number: int, parts: Sequence[Any]) -> None:
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


class MessageReader:
    """Reader of a connection's messages; :meth:`clear` removes the first one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8).data
        self._start = 0
        # Byte counts of the reads; their sum is the end of the data in the buffer.
        self._counts: list[int] = []

    @property
    def num_unread(self) -> int:
        """Number of received bytes that :meth:`clear` has not removed."""
        return sum(self._counts) - self._start

    def first(self) -> tuple[int, memoryview] | None:
        """Return the number and the content of the first message, or None if it is incomplete.

        The content is a view of a buffer, which is reused after :meth:`clear`.
        """
        if self.num_unread < _HEADER.size:
            return None
        number, size = _HEADER.unpack_from(self._buffer, self._start)
        start = self._start + _HEADER.size
        if self.num_unread < _HEADER.size + size:
            return None
        return number, self._buffer[start : start + size]

    def read(self) -> None:
        """Read the bytes that are available; an interrupt loses none of them."""
        self._ensure_capacity()
        counts = self._counts
        try:
            # In C, so no signal handler can run between the read and the append.
            counts.extend(map(self._connection.recv_into, (self._buffer[sum(counts) :],)))
        except BlockingIOError:
            raise
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        if not counts[-1]:
            counts.pop()
            raise PeerGoneError("the peer closed the connection")

    def _ensure_capacity(self) -> None:
        end = sum(self._counts)
        have, wanted = end - self._start, _HEADER.size
        if have >= wanted:
            wanted += _HEADER.unpack_from(self._buffer, self._start)[1]
        if end == len(self._buffer) or self._start + wanted > len(self._buffer):
            size = max(_BUFFER_BYTES, wanted, 2 * have)
            buffer = np.empty(size, np.uint8).data
            buffer[:have] = self._buffer[self._start : end]
            # One statement without calls, so an interrupt cannot come halfway.
            self._buffer, self._start, self._counts = buffer, 0, [have]
        elif len(self._counts) > 1:
            self._counts = [end]

    def clear(self) -> None:
        """Remove the first message, which must be complete."""
        _, size = _HEADER.unpack_from(self._buffer, self._start)
        start, end = self._start + _HEADER.size + size, sum(self._counts)
        if start < end:
            self._start = start
            return
        buffer = self._buffer
        if len(buffer) > _MAX_KEPT_BYTES:
            buffer = np.empty(_BUFFER_BYTES, np.uint8).data
        self._buffer, self._start, self._counts = buffer, 0, []
