"""Who may use a server: tokens, the names they go by, and what limits are their own.

Each line of a file of tokens is a token, or a name, a token, and what else there is to say::

    # course 2026
    alice   6f1c...   max-envs-per-session=512
    bob     e09a...
    staff   77d2...   admin

A name with several lines has several tokens, so that one can be replaced without a gap.
"""

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

from xuance_envs.remote.failures import RefusedError

__all__ = ["TOKENS_VARIABLE", "Owner", "ParseLimit", "Tokens"]

logger = logging.getLogger("xuance_envs")

TOKENS_VARIABLE = "XUANCE_ENVS_TOKENS"

ADMIN = "admin"
"""What a line says after the token of somebody who may see and end everybody's sessions."""

ParseLimit = Callable[[str], Mapping[str, float | None]]

_NAME = re.compile(r"[\w.@+-]{1,64}")
_SALT = secrets.token_bytes(32)


@dataclass(frozen=True)
class Owner:
    """Whom requests and sessions belong to: equal for all tokens of one name."""

    key: bytes
    name: str = field(compare=False)
    is_admin: bool = field(default=False, compare=False)
    limits: Mapping[str, float | None] = field(default_factory=dict, compare=False, hash=False)


class Tokens:
    """The tokens a server accepts.

    Args:
        tokens: these; with none, everybody is served, whatever the token.
        file: where more of them are; it can be read again with :meth:`reload`.
        limits: by name, the limits that a line of the file may set: what makes of a value's text
            the fields of :class:`~xuance_envs.remote.settings.Limits` that it replaces, or raises a
            ValueError.

    Raises:
        OSError: the file cannot be read.
        ValueError: a token is empty, or has characters that do not fit an HTTP header; or a line
            of the file is not of its form, or there is no token in it.
    """

    def __init__(
        self,
        tokens: Iterable[str] = (),
        file: Path | None = None,
        limits: Mapping[str, ParseLimit] | None = None,
    ) -> None:
        self._fixed = [(token, _owner_of_token(token)) for token in tokens]
        for number, (token, _) in enumerate(self._fixed, start=1):
            if not _is_token(token):
                raise ValueError(
                    f"token {number} of {len(self._fixed)}: expected visible ASCII characters only"
                )
        self._file = file
        self._limits = limits or {}
        self._read_at: tuple[int, ...] | None = None
        # By digest, which without the salt nobody can choose: a look-up tells nothing of a token.
        self._owners: dict[bytes, Owner] = {}
        self.reload()

    @classmethod
    def load(
        cls, file: Path | None = None, limits: Mapping[str, ParseLimit] | None = None
    ) -> Tokens:
        """The tokens of a file, and of the variable ``XUANCE_ENVS_TOKENS``.

        Raises:
            OSError: the file cannot be read.
            ValueError: a line of it is not of its form, or there is no token in it.
        """
        listed = os.environ.get(TOKENS_VARIABLE, "").split(",")
        return cls([token.strip() for token in listed if token.strip()], file, limits)

    def __len__(self) -> int:
        return len(self._owners)

    def reload(self) -> None:
        """Reads the file again; what it had before is forgotten.

        Raises:
            OSError: it cannot be read; everything stays as it was, here and below.
            ValueError: a line of it is not of its form, or there is no token in it.
        """
        found = list(self._fixed)
        if self._file is not None:
            self._read_at = self._version()
            read = self._read(self._file)
            if not read:
                raise ValueError(f"{self._file}: expected one token a line, got none")
            found += read
        owners: dict[bytes, Owner] = {}
        for token, owner in found:
            digest = _digest(token.encode())
            if (other := owners.setdefault(digest, owner)) != owner:
                raise ValueError(f"{other.name} and {owner.name} have the same token")
        self._owners = owners

    def reload_if_changed(self) -> bool:
        """Reads the file again if it is not the one that was read; whether it was read.

        Raises:
            OSError: it cannot be read.
            ValueError: a line of it is not of its form, or there is no token in it.
        """
        if self._file is None or self._version() == self._read_at:
            return False
        self.reload()
        return True

    def owner(self, authorization: bytes | None) -> Owner:
        """Whom a request belongs to, by its ``Authorization`` header.

        Raises:
            RefusedError: it has no token, or not one of these.
        """
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else b""
        if not self._owners:
            return _owner_of_token(given.decode("latin-1"))
        digest = _digest(given)
        owner = self._owners.get(digest)
        if owner is None:
            raise RefusedError(
                401,
                "token",
                "this server wants a token: send one of its own as 'Authorization: Bearer TOKEN'"
                if authorization is None
                else "this token is not one of the server's",
            )
        return owner

    def accepts(self, owner: Owner) -> bool:
        """Whether a token of this owner is accepted still."""
        return not self._owners or owner in self._owners.values()

    def _version(self) -> tuple[int, ...]:
        assert self._file is not None
        found = self._file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self, file: Path) -> list[tuple[str, Owner]]:
        if os.name == "posix" and file.stat().st_mode & stat.S_IROTH:
            logger.warning("%s: everybody on this machine may read these tokens: chmod 600", file)
        found = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            words = line.partition(" #")[0].split()
            if words and not words[0].startswith("#"):
                try:
                    found.append(self._parsed(words))
                except ValueError as error:
                    raise ValueError(f"{file}, line {number}: {error}") from None
        return found

    def _parsed(self, words: list[str]) -> tuple[str, Owner]:
        """The token of a line and its owner; no error repeats a word that may be a token."""
        token = words[min(1, len(words) - 1)]
        if not _is_token(token):
            raise ValueError("expected a token of visible ASCII characters only")
        if len(words) == 1:
            return token, _owner_of_token(token)
        name, _, *rest = words
        if not _NAME.fullmatch(name):
            raise ValueError("expected a name of letters, digits and any of . @ + - _")
        limits: dict[str, float | None] = {}
        for word in rest:
            limit, _, value = word.partition("=")
            if limit in self._limits:
                limits |= self._limits[limit](value)
            elif word != ADMIN:
                known = ", ".join(f"{each}=N" for each in self._limits)
                raise ValueError(f"expected, after the token, {ADMIN} or any of {known}")
        return token, Owner(b"name " + name.encode(), name, ADMIN in rest, limits)


def _is_token(token: str) -> bool:
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def _digest(token: bytes) -> bytes:
    return hashlib.blake2b(token, key=_SALT).digest()


@lru_cache(256)
def _owner_of_token(token: str) -> Owner:
    """A token's owner, with a name that tells nothing of the token."""
    digest = _digest(token.encode())
    return Owner(b"token " + digest, f"token-{digest[:3].hex()}" if token else "anybody")
