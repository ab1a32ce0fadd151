"""Reverse proxies in front of a server: root path and client addresses."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from xuance_envs.engine.system.current import system

Address = tuple[str, int]
Headers = Iterable[tuple[bytes, bytes]]

network_of = ipaddress.ip_network  # parses an address or a network such as 10.1.0.0/16


def root_path_of(text: str) -> str:
    """Return the path under which a proxy mounts the server, such as ``/envs``; empty for none."""
    path = text.rstrip("/")
    if path and (not path.startswith("/") or not path.isascii() or set(path) & set(" ?#%\\")):
        raise ValueError(f"expected a path such as /envs, got {text!r}")
    return path


def unix_socket(path: Path) -> socket.socket:
    """Listen on a Unix socket; the permissions of its folder decide which users can connect."""
    listener = system.unix_socket()
    try:
        try:
            listener.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            path.unlink()
            listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from None
    return listener


def _is_stale(path: Path) -> bool:
    with system.unix_socket() as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            return isinstance(error, ConnectionRefusedError) and path.is_socket()
    return False


class Proxies:
    """Reverse proxies in front of a server.

    Args:
        root_path: path under which the proxies mount the server, such as ``/envs``, without a slash
            at the end; empty for none.
        trusted: networks of proxies whose headers ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
            trusted, as :class:`ipaddress.IPv4Network` or :class:`ipaddress.IPv6Network`.
    """

    def __init__(
        self,
        root_path: str = "",
        trusted: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = (),
    ) -> None:
        self.root_path = root_path
        self._trusted = tuple(trusted)

    def client(self, peer: Address | None, headers: Headers) -> Address | None:
        """Return a client's address: the peer's own, or the one in the headers of a trusted proxy.

        The peer of a Unix socket is None, and trusted.
        """
        if peer is not None and not (self._trusted and self.trusts(peer)):
            return peer
        values = [value for name, value in headers if name == b"x-forwarded-for"]
        hops = b",".join(values).decode("latin-1").split(",")
        # Each proxy appends its client's address. A client can forge any entry before its own.
        for hop in reversed(hops):
            try:
                peer = str(ipaddress.ip_address(hop.strip())), 0
            except ValueError:
                break
            if not self.trusts(peer):
                break
        return peer

    def trusts(self, peer: Address) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        try:
            found = ipaddress.ip_address(peer[0])
        except ValueError:
            return False
        return any(found in network for network in self._trusted)

    def restore(self, scope: MutableMapping[str, Any]) -> None:
        """Restore path, scheme and client address, which proxies replaced, in an ASGI ``scope``."""
        root, path = self.root_path, scope["path"]
        if root:
            scope["root_path"] = root
            if path != root and not path.startswith(f"{root}/"):
                scope["path"] = root + path
                scope["raw_path"] = root.encode() + scope["raw_path"]
        peer, headers = scope.get("client"), scope["headers"]
        if peer is None or self.trusts(peer):
            protos = [value for name, value in headers if name == b"x-forwarded-proto"]
            if protos and protos[0] in (b"http", b"https"):
                scope["scheme"] = protos[0].decode()
            scope["client"] = self.client(peer, headers)
