"""Addresses of servers, and of the proxies through which clients connect."""

from __future__ import annotations

import base64
import re
import urllib.request
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

_NETLOC = re.compile(r"([\w.-]*\w\.?|\[[0-9a-f:.]+(%\w+)?\])(:\d+)?", re.ASCII | re.IGNORECASE)


class Address(NamedTuple):
    scheme: str
    netloc: str  # host and port; empty for the scheme ``unix``
    path: str
    login: str  # value of the authorization header; empty without a user and password

    @classmethod
    def parse(cls, text: str, schemes: tuple[str, ...]) -> Address:
        """Parse an address; errors omit the address, because it may contain a password."""
        parts = urlsplit(text.rstrip("/"))
        login, at, netloc = parts.netloc.rpartition("@")
        netloc = netloc.encode("idna").decode()
        is_valid = bool(parts.path) if parts.scheme == "unix" else _NETLOC.fullmatch(netloc)
        if parts.scheme not in schemes or not is_valid or parts.query or parts.fragment:
            raise ValueError(f"it needs {' or '.join(schemes)} and a host; ? and # are not allowed")
        if not text.isprintable() or parts.port == 0:
            raise ValueError("it must be printable, and its port, if given, from 1 to 65535")
        if at:
            user_and_password = unquote_to_bytes(login if ":" in login else f"{login}:")
            login = f"Basic {base64.b64encode(user_and_password).decode()}"
        return cls(parts.scheme, netloc, parts.path, login)

    def __str__(self) -> str:
        """Return the address without user and password."""
        return f"{self.scheme}:{self.netloc and '//'}{self.netloc}{self.path}"


def redacted(url: str) -> str:
    """Return an address without user and password, for display."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1", url, flags=re.DOTALL | re.IGNORECASE)


def proxy_of(server: Address) -> Address | None:
    """Return the proxy for a server, from a variable such as ``http_proxy``."""
    address = urllib.request.getproxies().get(server.scheme)
    if not address or urllib.request.proxy_bypass(server.netloc):
        return None
    try:
        return Address.parse(address if "://" in address else f"http://{address}", ("http",))
    except ValueError:
        raise ValueError(
            f"environment variable {server.scheme}_proxy: expected an address such as "
            f"http://host:3128, got {redacted(address)!r}"
        ) from None
