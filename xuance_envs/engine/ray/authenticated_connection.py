"""A connection between a caller and one of its actors: who has an end of it, and its messages.

Both prove first that they know a key, and until then read nothing but bytes to compare. Each
message has a number and its length before it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np

from xuance_envs.engine.process.channel import PeerGoneError

__all__ = [
    "AuthenticationError",
    "Listener",
    "MessageReader",
    "connect_authenticated",
    "header",
    "send_message",
]

_HEADER = struct.Struct("<QQ")
_BUFFER_BYTES = 1 << 16
_MAX_KEPT_BYTES = 1 << 26
"""So many bytes of room for messages are kept, and more only for the message that needs them."""

_MAX_PARTS = 512
"""So many parts are written in one go, and no more by any system."""

_NONCE = _PROOF = 32
_HANDSHAKE_TIMEOUT = 1.0
"""Seconds that one who connects has to prove who it is, while others wait."""

_BACKLOG = 16

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A connection that nothing goes through is looked at as often, in seconds: so that what is on the
way does not forget it, and its end is noticed if it does."""

_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_after_fork() -> None:
    """Keeps a forked process from answering or asking in the place of the one it came from."""
    for connection in list(_open_sockets):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)


class AuthenticationError(Exception):
    """Who is at the other end does not know the key."""


class Listener:
    """Where an actor's caller may connect to it, once, and nobody else."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        _open_sockets.add(self._socket)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.key = secrets.token_bytes(32)

    def accept(self, seconds: float) -> socket.socket:
        """Waits for the caller; then, and when the time is over, nobody can connect any more."""
        deadline = monotonic() + seconds
        with self._socket:
            while True:
                self._socket.settimeout(_remaining(deadline))
                peer, _ = self._socket.accept()
                try:
                    _authenticate_caller(
                        peer, self.key, min(deadline, monotonic() + _HANDSHAKE_TIMEOUT)
                    )
                    return _configure(peer)
                except (OSError, AuthenticationError):
                    peer.close()


def connect_authenticated(
    address: tuple[str, int], key: bytes, deadline: float, served: Any
) -> socket.socket:
    """Connects to an actor."""
    connection = socket.create_connection(address, _remaining(deadline))
    try:
        served()
        _authenticate_actor(connection, key, deadline)
        return _configure(connection)
    except BaseException:
        connection.close()
        raise


def _authenticate_caller(peer: socket.socket, key: bytes, deadline: float) -> None:
    mine = secrets.token_bytes(_NONCE)
    peer.settimeout(_remaining(deadline))
    peer.sendall(mine)
    theirs, proof = _split(_recv_exactly(peer, _NONCE + _PROOF, deadline))
    _check(proof, key, b"caller", mine + theirs)
    peer.sendall(_proof(key, b"actor", mine + theirs))


def _authenticate_actor(peer: socket.socket, key: bytes, deadline: float) -> None:
    theirs = _recv_exactly(peer, _NONCE, deadline)
    mine = secrets.token_bytes(_NONCE)
    peer.sendall(mine + _proof(key, b"caller", theirs + mine))
    _check(_recv_exactly(peer, _PROOF, deadline), key, b"actor", theirs + mine)


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


def _check(proof: bytes, key: bytes, side: bytes, nonces: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(key, side, nonces)):
        raise AuthenticationError(f"who is there has not the key of the {side.decode()}")


def _split(both: bytes) -> tuple[bytes, bytes]:
    return both[:_NONCE], both[_NONCE:]


def _recv_exactly(peer: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        peer.settimeout(_remaining(deadline))
        more = peer.recv(size - len(data))
        if not more:
            raise AuthenticationError("who is there left without a proof")
        data += more
    return data


def _remaining(deadline: float) -> float:
    return max(deadline - monotonic(), 1e-3)


def _configure(connection: socket.socket) -> socket.socket:
    """Settles how what has been connected is to behave."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        with suppress(AttributeError, OSError):  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    _open_sockets.add(connection)
    return connection


def header(number: int, size: int) -> bytes:
    """What goes before a message."""
    return _HEADER.pack(number, size)


def send_message(connection: socket.socket, number: int, parts: Sequence[Any]) -> None:
    """Writes a message to a connection that blocks."""
    size = sum([memoryview(part).nbytes for part in parts])
    whole = [header(number, size), *parts]
    if len(whole) > _MAX_PARTS:
        whole = [b"".join(whole)]
    try:
        sent = connection.sendmsg(whole)
        if sent < _HEADER.size + size:
            connection.sendall(b"".join(whole)[sent:])
    except OSError as error:
        raise PeerGoneError(str(error)) from error


class MessageReader:
    """The messages that come by a connection, the first of which is kept until it is cleared."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8).data
        self._start = 0
        # How many bytes came with each read; their sum is where in the buffer they end.
        self._counts: list[int] = []

    @property
    def num_unread(self) -> int:
        """How many bytes have come of messages that have not been cleared."""
        return sum(self._counts) - self._start

    def first(self) -> tuple[int, memoryview] | None:
        """The number of the first message, and the message, if all of it has come.

        It is a view of what is written anew once it is cleared.
        """
        if self.num_unread < _HEADER.size:
            return None
        number, size = _HEADER.unpack_from(self._buffer, self._start)
        start = self._start + _HEADER.size
        if self.num_unread < _HEADER.size + size:
            return None
        return number, self._buffer[start : start + size]

    def read(self) -> None:
        """Reads what there is, and loses nothing of it when it is interrupted."""
        self._ensure_capacity()
        counts = self._counts
        try:
            # Both in C: no signal's exception can come between the read and the append.
            counts.extend(map(self._connection.recv_into, (self._buffer[sum(counts) :],)))
        except BlockingIOError:
            raise
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        if not counts[-1]:
            counts.pop()
            raise PeerGoneError("it was closed at the other end")

    def _ensure_capacity(self) -> None:
        end = sum(self._counts)
        have, wanted = end - self._start, _HEADER.size
        if have >= wanted:
            wanted += _HEADER.unpack_from(self._buffer, self._start)[1]
        if end == len(self._buffer) or self._start + wanted > len(self._buffer):
            size = max(_BUFFER_BYTES, wanted, 2 * have)
            buffer = np.empty(size, np.uint8).data
            buffer[:have] = self._buffer[self._start : end]
            # No call in between, so that an interrupt finds either the old one or the new one.
            self._buffer, self._start, self._counts = buffer, 0, [have]
        elif len(self._counts) > 1:
            self._counts = [end]

    def clear(self) -> None:
        """Lets go of the first message, all of which has come."""
        _, size = _HEADER.unpack_from(self._buffer, self._start)
        start, end = self._start + _HEADER.size + size, sum(self._counts)
        if start < end:
            self._start = start
            return
        buffer = self._buffer
        if len(buffer) > _MAX_KEPT_BYTES:
            buffer = np.empty(_BUFFER_BYTES, np.uint8).data
        self._buffer, self._start, self._counts = buffer, 0, []
