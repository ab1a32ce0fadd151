"""Access to a server: tokens, permissions of clients, and proxies in front of the server."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import logging
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from xuance_envs.engine.system.current import system
from xuance_envs.remote.wire.constants import is_token
from xuance_envs.remote.wire.failures import RefusedError

logger = logging.getLogger("xuance_envs")

TOKENS_VARIABLE = "XUANCE_ENVS_TOKENS"

ADMIN = "admin"  # word after a token in the file: the token's owner may list and end all sessions
ALL_INFOS = "*"  # wildcard for all keys of infos

TokenLimits = Mapping[str, Callable[[str], Mapping[str, float | None]]]
Names = frozenset[str]
Keywords = Mapping[str, tuple[Any, ...] | None]  # allowed values by name; None allows any value
Address = tuple[str, int]
Headers = Iterable[tuple[bytes, bytes]]

NAME = re.compile(r"[\w.@+-]{1,64}")
NAME_RULE = "a name of at most 64 letters, digits and any of . @ + - _"
_SALT = secrets.token_bytes(32)


@dataclass(frozen=True)
class Owner:
    """Owner of requests and sessions; tokens with the same name have equal owners."""

    key: bytes
    name: str = field(compare=False)
    is_admin: bool = field(default=False, compare=False)
    limits: Mapping[str, float | None] = field(default_factory=dict, compare=False, hash=False)


class Tokens:
    """Tokens that a server accepts.

    Args:
        tokens: accepted tokens. Without ``tokens`` and ``file``, the server accepts every request.
        file: file with more tokens; :meth:`reload` reads it again. Each line is ``TOKEN`` or
            ``NAME TOKEN [OPTION ...]``. An option is ``admin``, or ``LIMIT=VALUE`` for a name in
            ``limits``. Empty lines and comments (``#``) are ignored.
        limits: names of the limits that the file may set, each with a parser. A parser takes the
            value as text, and returns the fields of :class:`~xuance_envs.remote.settings.Limits` to
            override. It raises ValueError if the text is invalid.

    Raises:
        OSError: the file cannot be read.
        ValueError: a token is empty or has characters other than visible ASCII, a line of the file
            is malformed, the file has no tokens, or two names have the same token.
    """

    def __init__(
        self,
        tokens: Iterable[str] = (),
        file: Path | None = None,
        limits: TokenLimits | None = None,
    ) -> None:
        self._fixed = [(token, _owner_of_token(token)) for token in tokens]
        for number, (token, _) in enumerate(self._fixed, start=1):
            if not is_token(token):
                which = f"token {number} of {len(self._fixed)}"
                got = "other characters" if token else "an empty string"
                raise ValueError(f"{which}: expected visible ASCII characters only, got {got}")
        self._file = file
        self._limits = limits or {}
        self._loaded_version: tuple[int, ...] | None = None
        # Keys are salted digests, so that lookup times reveal nothing about a token.
        self._owners: dict[bytes, Owner] = {}
        self.reload()

    @classmethod
    def load(cls, file: Path | None = None, limits: TokenLimits | None = None) -> Tokens:
        """Load the tokens from a file and the environment variable ``XUANCE_ENVS_TOKENS``.

        The arguments and errors are those of the class.
        """
        listed = os.environ.get(TOKENS_VARIABLE, "").split(",")
        return cls([token.strip() for token in listed if token.strip()], file, limits)

    def __len__(self) -> int:
        return len(self._owners)

    def count_names(self) -> int:
        """Return the number of names; each distinct token without a name counts as one."""
        return len(set(self._owners.values()))

    def reload(self) -> None:
        """Read the file again and replace the tokens that came from it.

        The errors are those of the class. After an error, the tokens stay unchanged.
        """
        found = list(self._fixed)
        if self._file is not None:
            self._loaded_version = _version_of(self._file)
            read = self._read_file(self._file)
            if not read:
                raise ValueError(f"{self._file}: expected one token per line, got none")
            found += read
        owners: dict[bytes, Owner] = {}
        for token, owner in found:
            digest = _digest(token.encode())
            if (other := owners.setdefault(digest, owner)) != owner:
                raise ValueError(self._same_token(other, owner))
        self._owners = owners

    def _same_token(self, one: Owner, other: Owner) -> str:
        # Tokens that the server got without a file, such as from TOKENS_VARIABLE, have no names.
        names = [each.name for each in (one, other) if each.key.startswith(b"name ")]
        who = " and ".join(names) if len(names) == 2 else f"{names[0]} and an entry without a name"
        return f"{self._file}: expected different tokens, got the same one for {who}: change one"

    def reload_if_changed(self) -> bool:
        """Call :meth:`reload` if the file has changed; return True if it has."""
        if self._file is None or _version_of(self._file) == self._loaded_version:
            return False
        self.reload()
        return True

    def owner(self, authorization: bytes | None) -> Owner:
        """Return the owner of a request with this ``Authorization`` header, or refuse with 401."""
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else b""
        if not self._owners:
            return _owner_of_token(given.decode("latin-1"))
        owner = self._owners.get(_digest(given))
        if owner is None:
            text = "this server does not accept the given token"
            if authorization is None:
                text = "this server requires a token: send it as 'Authorization: Bearer TOKEN'"
            raise RefusedError(401, "token", text)
        return owner

    def accepts(self, owner: Owner) -> bool:
        """Return whether a token of this owner is still accepted."""
        return not self._owners or owner in self._owners.values()

    def _read_file(self, file: Path) -> list[tuple[str, Owner]]:
        if system.HAS_FILE_MODES and file.stat().st_mode & stat.S_IROTH:
            text = "all users of this machine can read the tokens in %s: run chmod 600"
            logger.warning(text, file)
        found = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            words = line.partition(" #")[0].split()
            if words and not words[0].startswith("#"):
                try:
                    found.append(self._parse_line(words))
                except ValueError as error:
                    raise ValueError(f"{file}, line {number}: {error}") from None
        return found

    def _parse_line(self, words: list[str]) -> tuple[str, Owner]:
        """Parse a line into token and owner; errors never repeat a word that may be a token."""
        token = words[min(1, len(words) - 1)]
        if not is_token(token):
            raise ValueError("expected a token of visible ASCII characters only")
        if len(words) == 1:
            return token, _owner_of_token(token)
        name, _, *rest = words
        if not NAME.fullmatch(name):
            raise ValueError(f"expected {NAME_RULE}")
        limits: dict[str, float | None] = {}
        for word in rest:
            limit, _, value = word.partition("=")
            if limit in self._limits:
                limits |= self._limits[limit](value)
            elif word != ADMIN:
                known = ", ".join(f"{each}=N" for each in self._limits)
                raise ValueError(f"after the token, expected {ADMIN} or any of {known}")
        return token, Owner(b"name " + name.encode(), name, ADMIN in rest, limits)


def _version_of(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(token: bytes) -> bytes:
    return hashlib.blake2b(token, key=_SALT).digest()


@lru_cache(256)
def _owner_of_token(token: str) -> Owner:
    """Return an owner for a token without a name: its generated name does not reveal the token."""
    digest = _digest(token.encode())
    return Owner(b"token " + digest, f"token-{digest[:3].hex()}" if token else "anybody")


@dataclass(frozen=True)
class Permissions:
    """Names that clients may use, and data that they receive.

    The server refuses other names with status 403.

    Attributes:
        calls: methods that clients may call.
        gets: attributes that clients may read.
        sets: attributes that clients may set.
        options: options that clients may pass to reset.
        infos: keys of infos that clients receive; ``{"*"}`` for all. With None, ``RemoteVecEnv``
            receives all keys, and notebook clients none. Notebook clients always receive ``step``,
            ``terminated`` and ``truncated``.
        tracebacks: whether clients receive the tracebacks of failed environments.
        any_action: whether environments receive actions outside the action space.
    """

    calls: Names = frozenset()
    gets: Names = frozenset()
    sets: Names = frozenset()
    options: Names = frozenset()
    infos: Names | None = None
    tracebacks: bool = False
    any_action: bool = False

    def check_operation(self, operation: str, name: str) -> None:
        """Refuse with status 403 unless clients may use this ``name`` in this ``operation``."""
        option, allowed = {
            "call": ("--allow-call", self.calls),
            "get_attr": ("--allow-get", self.gets),
            "set_attr": ("--allow-set", self.sets),
        }.get(operation, ("", {name}))
        if name not in allowed:
            raise _not_allowed("name", f"the name {name!a}", f"for {operation!r}", option)

    def check_options(self, options: Mapping[str, Any] | None) -> None:
        """Refuse with status 403 unless clients may pass these options to ``reset``."""
        for name in options or ():
            if name not in self.options:
                what = f"the option {name!a}"
                raise _not_allowed("options", what, "for resets", "--allow-option")

    def infos_of(self, repeating: bool) -> Names | None:
        """Return the info keys that a client receives; None for all."""
        if self.infos is None:
            return frozenset() if repeating else None
        return None if ALL_INFOS in self.infos else self.infos


def check_keyword(name: str, value: Any, allowed: Keywords) -> None:
    """Refuse with status 403 unless clients may pass this keyword argument to new environments."""
    what = f"the keyword argument {name!a}"
    if name not in allowed:
        raise _not_allowed("kwargs", what, "for new environments", "--allow-kwarg")
    values = allowed[name]
    if values is not None and not any(type(value) is type(one) and value == one for one in values):
        expected = " or ".join(map(repr, values))
        raise RefusedError(403, "kwargs", f"{what} must be {expected} on this server")


def allowed_values(options: Iterable[str]) -> dict[str, tuple[Any, ...] | None]:
    """Parse options ``NAME`` and ``NAME=VALUE``; a VALUE that is not JSON is taken as a string."""
    allowed: dict[str, tuple[Any, ...] | None] = {}
    for option in options:
        name, given, text = option.partition("=")
        if not name:
            raise ValueError(f"--allow-kwarg: expected NAME or NAME=VALUE, got {option!r}")
        before = allowed.get(name, ())
        allowed[name] = None if not given or before is None else (*before, _value(text))
    return allowed


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _not_allowed(code: str, what: str, where: str, option: str) -> RefusedError:
    text = f"{what} is not allowed {where}; the server's operator can allow it with {option} NAME"
    return RefusedError(403, code, text)


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
        with system.unix_socket() as probe:  # a server that was killed leaves its socket behind
            probe.settimeout(1)  # the server's queue may be full
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED and path.is_socket():
                path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


@dataclass(frozen=True)
class Proxies:
    """Reverse proxies in front of a server.

    Attributes:
        root_path: path under which the proxies mount the server, such as ``/envs``, without a slash
            at the end; empty for none.
        trusted: networks of proxies whose headers ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
            trusted, as :class:`ipaddress.IPv4Network` or :class:`ipaddress.IPv6Network`.
    """

    root_path: str = ""
    trusted: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()

    def client(self, peer: Address | None, headers: Headers) -> Address | None:
        """Return a client's address: the peer's own, or the one in the headers of a trusted proxy.

        The peer of a Unix socket is None, and trusted.
        """
        if peer is not None and not (self.trusted and self.trusts(peer)):
            return peer
        values = [value for name, value in headers if name == b"x-forwarded-for"]
        hops = b",".join(values).decode("latin-1").split(",")
        # Each proxy appends its client's address. A client can forge any entry before its own.
        with suppress(ValueError):
            for hop in reversed(hops):
                peer = str(ipaddress.ip_address(hop.strip())), 0
                if not self.trusts(peer):
                    break
        return peer

    def trusts(self, peer: Address) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        with suppress(ValueError):
            found = ipaddress.ip_address(peer[0])
            return any(found in network for network in self.trusted)
        return False

    def restore(self, scope: MutableMapping[str, Any]) -> None:
        """Undo the proxies' changes to path, scheme and client address in an ASGI ``scope``."""
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
