"""Authenticated connections between the main process and its actors.

Both sides prove that they have the listener's key before either of them parses anything else.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import weakref
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs.engine.system.current import system

_NONCE = _PROOF = 32
_MAX_CALLERS = 128  # peers that authenticate at a time; another replaces the oldest

# Settings of keep-alive probes, which prevent idle disconnects and detect failed machines.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}

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
        """Wait until one of the concurrent peers has authenticated itself, and stop listening."""
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
    """Peer that has connected to a listener, but not authenticated itself yet."""

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
        own = secrets.token_bytes(_NONCE)
        nonces = _recv_exactly(connection, _NONCE, deadline) + own
        connection.sendall(own + _proof(key, b"caller", nonces))
        _check(_recv_exactly(connection, _PROOF, deadline), key, b"actor", nonces)
        return _configure(connection)
    except BaseException:
        connection.close()
        raise


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
