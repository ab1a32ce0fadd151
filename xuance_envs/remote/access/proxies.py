"""A server behind a proxy: where it appears to its clients, and who they are."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = [
    "BehindProxies",
    "Network",
    "Proxies",
    "network_of",
    "root_path_of",
    "unix_socket",
]

Address = tuple[str, int]
Headers = Iterable[tuple[bytes, bytes]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network_of(address: str) -> Network:
    """The network of an address such as ``10.0.0.5`` or ``10.1.0.0/16``."""
    return ipaddress.ip_network(address)


def root_path_of(text: str) -> str:
    """The path below which a proxy has a server, as ``/envs``; empty for none."""
    path = text.rstrip("/")
    if path and (not path.startswith("/") or not path.isascii() or set(path) & set(" ?#%\\")):
        raise ValueError(f"root path: expected a path such as /envs, got {text!r}")
    return path


def unix_socket(path: Path) -> socket.socket:
    """A unix socket that listens; everybody may connect whom the folder it is in lets through."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        try:
            listening.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            path.unlink()
            listening.bind(str(path))
        path.chmod(0o666)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from None
    return listening


def _is_stale(path: Path) -> bool:
    """Whether a unix socket is there that nobody listens on any more."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return path.is_socket()
        except OSError:
            return False
    return False


class Proxies:
    """What a server knows of the proxies in front of it."""

    def __init__(self, root_path: str = "", trusted: Sequence[Network] = ()) -> None:
        self.root_path = root_path
        self._trusted = tuple(trusted)

    def client(self, peer: Address | None, headers: Headers) -> Address | None:
        """The address of a client."""
        if peer is not None and not self.trusts(peer):
            return peer
        hops = [
            hop.strip()
            for name, value in headers
            if name == b"x-forwarded-for"
            for hop in value.decode("latin-1").split(",")
        ]
        # Each proxy adds whom it was asked by; what comes before the first stranger anybody wrote.
        for hop in reversed(hops):
            try:
                peer = str(ipaddress.ip_address(hop)), 0
            except ValueError:
                break
            if not self.trusts(peer):
                break
        return peer

    def trusts(self, peer: Address) -> bool:
        """Whether a request comes from one of the proxies."""
        if not self._trusted:
            return False
        try:
            found = ipaddress.ip_address(peer[0])
        except ValueError:
            return False
        return any(found in network for network in self._trusted)


class BehindProxies:
    """An ASGI application that sees what a client would have sent, had there been no proxies."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI has it."""
        if scope["type"] == "http":
            root, path = self._proxies.root_path, scope["path"]
            if root:
                scope["root_path"] = root
                if path != root and not path.startswith(f"{root}/"):
                    scope["path"] = root + path
                    scope["raw_path"] = root.encode() + scope["raw_path"]
            peer, headers = scope.get("client"), scope["headers"]
            if peer is None or self._proxies.trusts(peer):
                proto = next(
                    (value for name, value in headers if name == b"x-forwarded-proto"), b""
                )
                if proto in (b"http", b"https"):
                    scope["scheme"] = proto.decode()
                scope["client"] = self._proxies.client(peer, headers)
        await self._app(scope, receive, send)
