"""A server behind a proxy: where it appears to its clients, and who they are."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["BehindProxies", "Network", "network_of", "root_path_of", "unix_socket"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SCHEMES = ("http", "https")


def network_of(address: str) -> Network:
    """The network of an address such as ``10.0.0.5`` or ``10.1.0.0/16``.

    Raises:
        ValueError: it is none.
    """
    return ipaddress.ip_network(address)


def root_path_of(text: str) -> str:
    """The path below which a proxy has a server, as ``/envs``; empty for none.

    Raises:
        ValueError: it is none.
    """
    path = text.rstrip("/")
    if path and (not path.startswith("/") or not path.isascii() or set(path) & set(" ?#%\\")):
        raise ValueError(f"root path: expected a path such as /envs, got {text!r}")
    return path


def unix_socket(path: Path) -> socket.socket:
    """A unix socket that listens; everybody may connect whom the folder it is in lets through.

    Raises:
        OSError: it cannot be made there, for instance because another server listens there.
    """
    listening = socket.socket(socket.AF_UNIX)
    try:
        try:
            listening.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            path.unlink()
            listening.bind(str(path))
        path.chmod(0o666)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from None
    return listening


def _is_left_over(path: Path) -> bool:
    """Whether a unix socket is there that nobody listens on any more."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return path.is_socket()
        except OSError:
            return False
    return False


class BehindProxies:
    """An ASGI application that takes from its proxies, and from nobody else, who a client is.

    Args:
        app: the application.
        root_path: the path the proxies have it below, whether they take it off or leave it.
        trusted: the networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
            believed. So are those of whoever comes by a unix socket.
    """

    def __init__(self, app: ASGIApp, root_path: str, trusted: Sequence[Network]) -> None:
        self._app = app
        self._root_path = root_path
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI has it."""
        if scope["type"] == "http":
            root, path = self._root_path, scope["path"]
            if root:
                scope["root_path"] = root
                if path != root and not path.startswith(f"{root}/"):
                    scope["path"] = root + path
                    scope["raw_path"] = root.encode() + scope["raw_path"]
            client = scope.get("client")
            if client is None or self._trusts(client[0]):
                self._believe(scope)
        await self._app(scope, receive, send)

    def _trusts(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._trusted)

    def _believe(self, scope: Scope) -> None:
        hops: list[str] = []
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                hops += [hop.strip() for hop in value.decode("latin-1").split(",")]
            elif name == b"x-forwarded-proto" and value.decode("latin-1") in SCHEMES:
                scope["scheme"] = value.decode("latin-1")
        # Each proxy adds whom it was asked by; what comes before the first stranger anybody wrote.
        for hop in reversed(hops):
            try:
                scope["client"] = str(ipaddress.ip_address(hop)), 0
            except ValueError:
                return
            if not self._trusts(hop):
                return
