"""Tokens of a server, with names and individual limits."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from xuance_envs.engine.system.current import system
from xuance_envs.remote.wire.constants import is_token
from xuance_envs.remote.wire.failures import RefusedError

logger = logging.getLogger("xuance_envs")

TOKENS_VARIABLE = "XUANCE_ENVS_TOKENS"

ADMIN = "admin"  # word after a token in the file: the token's owner may list and end all sessions

TokenLimits = Mapping[str, Callable[[str], Mapping[str, float | None]]]

NAME = re.compile(r"[\w.@+-]{1,64}")
NAME_RULE = "a name of at most 64 letters, digits and any of . @ + - _"
_SALT = secrets.token_bytes(32)


@dataclass(frozen=True)
class Owner:
    """Owner of requests and sessions; equal for all tokens of one name."""

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
        limits: parsers of the limits that the file may set, by limit name. A parser takes the value
            as text and returns the fields of :class:`~xuance_envs.remote.settings.Limits` to
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
            self._loaded_version = self._file_version()
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
        if self._file is None or self._file_version() == self._loaded_version:
            return False
        self.reload()
        return True

    def owner(self, authorization: bytes | None) -> Owner:
        """Return the owner of a request with this ``Authorization`` header, or refuse with 401."""
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else b""
        if not self._owners:
            return _owner_of_token(given.decode("latin-1"))
        digest = _digest(given)
        owner = self._owners.get(digest)
        if owner is None:
            text = "this server does not accept the given token"
            if authorization is None:
                text = "this server requires a token: send it as 'Authorization: Bearer TOKEN'"
            raise RefusedError(401, "token", text)
        return owner

    def accepts(self, owner: Owner) -> bool:
        """Return whether a token of this owner is still accepted."""
        return not self._owners or owner in self._owners.values()

    def _file_version(self) -> tuple[int, ...]:
        assert self._file is not None
        found = self._file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

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


def _digest(token: bytes) -> bytes:
    return hashlib.blake2b(token, key=_SALT).digest()


@lru_cache(256)
def _owner_of_token(token: str) -> Owner:
    """Return the owner of a token without a name; the generated name does not reveal the token."""
    digest = _digest(token.encode())
    return Owner(b"token " + digest, f"token-{digest[:3].hex()}" if token else "anybody")
