"""What a server hosts, for whom, and how much of it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.remote.failures import RefusedError

__all__ = ["TOKENS_VARIABLE", "Catalogue", "Limits", "Settings", "Tokens", "is_loopback"]

TOKENS_VARIABLE = "XUANCE_ENVS_TOKENS"

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What clients may ask for. A request for more is refused with a 4xx that says so.

    Rates are an exception: who is faster is slowed, and refused only where it would wait too long.

    Attributes:
        sessions: sessions at the same time.
        sessions_per_token: of these, of one token.
        environments: environments at the same time.
        environments_per_token: of these, of one token; None for any number, here and below.
        environments_per_session: of these, in one session.
        processes: processes for environments at the same time.
        processes_per_token: of these, of one token.
        processes_per_session: of these, of one session; episodes created beyond share them.
        requests_per_session: requests of one session that wait for their turn.
        requests_rate_per_token: requests per second.
        requests_rate_per_session: requests per second.
        steps_rate_per_token: environment steps per second.
        steps_rate_per_session: environment steps per second.
        memory: bytes of data one process of environments may have.
        memory_per_token: bytes that all processes of a token's sessions may have together.
        memory_per_session: bytes that all processes of a session may have together.
        cpu_per_token: seconds of CPU that a token's sessions may take in all.
        cpu_per_session: seconds of CPU that one session may take.
        connections: connections at the same time, as far as descriptors allow.
        body: bytes of a request.
        bodies: bytes that all large requests under way may take, decoded.
        nodes: values, lists and dicts in a request.
        reply: bytes of one answer, in the form it is asked for.
        replies: bytes of large answers under way.
        kept: bytes of large answers that are kept in case they are asked for again.
        repeats: steps of one environment per request.
        idle: seconds after which a session that is not used is closed.
        request: seconds the environments may take for one request before their process is killed.
        start: seconds they may take to be made.
        head: seconds the head of a request may take to arrive.
        upload: seconds the body of a request may take to arrive.
        write: seconds a client may take for a MiB of its answer, or all that is left of it.
    """

    sessions: int = 64
    sessions_per_token: int = 8
    environments: int = 1024
    environments_per_token: int | None = 512
    environments_per_session: int = 256
    processes: int = 256
    processes_per_token: int | None = 64
    processes_per_session: int = 16
    requests_per_session: int = 8
    requests_rate_per_token: float | None = None
    requests_rate_per_session: float | None = None
    steps_rate_per_token: float | None = None
    steps_rate_per_session: float | None = None
    memory: int | None = 4096 * MIB
    memory_per_token: int | None = None
    memory_per_session: int | None = 8192 * MIB
    cpu_per_token: float | None = None
    cpu_per_session: float | None = None
    connections: int = 1024
    body: int = 16 * MIB
    bodies: int = 128 * MIB
    nodes: int = 500_000
    reply: int = 64 * MIB
    replies: int = 64 * MIB
    kept: int = 64 * MIB
    repeats: int = 1000
    idle: float = 600.0
    request: float = 60.0
    start: float = 60.0
    head: float = 10.0
    upload: float = 30.0
    write: float = 30.0


class Catalogue:
    """The environments a server makes: nothing else can be asked for.

    Args:
        environments: by the id that clients use, what makes one environment. It is called with
            the keyword arguments a client gave, and with ``env_seed`` if it gave a seed.
        allowed_kwargs: the keyword arguments a client may give.
    """

    def __init__(
        self, environments: Mapping[str, Callable[..., Any]], allowed_kwargs: Iterable[str] = ()
    ) -> None:
        if not environments:
            raise ValueError("expected at least one environment to serve, got none")
        self._environments = dict(environments)
        self._allowed_kwargs = frozenset(allowed_kwargs)

    @classmethod
    def of_ids(cls, ids: Iterable[str], allowed_kwargs: Iterable[str] = ()) -> Catalogue:
        """A catalogue of Gymnasium's ids, each made as a ``Gym_Env``."""
        return cls({env_id: partial(_make_gym_env, env_id) for env_id in ids}, allowed_kwargs)

    @property
    def ids(self) -> list[str]:
        """The ids, in the order they were given."""
        return list(self._environments)

    def functions(
        self, env_id: str | None, num_envs: int, kwargs: Mapping[str, Any]
    ) -> list[Callable[..., Any]]:
        """What makes so many environments of an id; None stands for the only one there is.

        Raises:
            RefusedError: there is no such id, or a keyword argument is not allowed.
        """
        if env_id is None:
            if len(self._environments) > 1:
                raise RefusedError(
                    422, "env_id", f"say which environment: this server has {self._listed()}"
                )
            (env_id,) = self._environments
        if env_id not in self._environments:
            raise RefusedError(
                404, "env_id", f"no environment {env_id!a}: this server has {self._listed()}"
            )
        if refused := sorted(kwargs.keys() - self._allowed_kwargs):
            raise RefusedError(
                403,
                "kwargs",
                f"the keyword argument {refused[0]!a} is not allowed; the server's operator "
                "allows one with --allow-kwarg NAME",
            )
        return [partial(self._environments[env_id], **kwargs)] * num_envs

    def _listed(self) -> str:
        return ", ".join(map(repr, self._environments))


def _make_gym_env(env_id: str, *, env_seed: int | None = None, **kwargs: Any) -> Gym_Env:
    return Gym_Env(env_id, seed=env_seed, **kwargs)


class Tokens:
    """Who may use a server.

    Args:
        tokens: the tokens that are accepted; with none, everybody is.

    Raises:
        ValueError: one is empty, or has characters that do not fit an HTTP header.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        tokens = list(tokens)
        for number, token in enumerate(tokens, start=1):
            if not token or not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError(
                    f"token {number} of {len(tokens)}: expected visible ASCII characters only"
                )
        # Digests are of one length, so that comparing takes the same time for any token.
        self._digests = [_digest(token.encode()) for token in tokens]

    @classmethod
    def load(cls, file: Path | None = None) -> Tokens:
        """The tokens of a file, one a line, and of the variable ``XUANCE_ENVS_TOKENS``.

        Raises:
            OSError: the file cannot be read.
            ValueError: there is no token in it.
        """
        listed = os.environ.get(TOKENS_VARIABLE, "").split(",")
        tokens = [token.strip() for token in listed if token.strip()]
        if file is not None:
            lines = file.read_text(encoding="utf-8").splitlines()
            found = [line.strip() for line in lines if line.strip()]
            if not found:
                raise ValueError(f"{file}: expected one token a line, got none")
            tokens += found
        return cls(tokens)

    def __len__(self) -> int:
        return len(self._digests)

    def owner(self, authorization: bytes | None) -> bytes:
        """Whom a request belongs to, by its ``Authorization`` header.

        Raises:
            RefusedError: it has no token, or not one of these.
        """
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        given = _digest(token.strip() if scheme.lower() == b"bearer" else b"")
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        if self._digests and not any(known):
            raise RefusedError(
                401,
                "token",
                "this server wants a token: send one of its own as 'Authorization: Bearer TOKEN'"
                if authorization is None
                else "this token is not one of the server's",
            )
        return given


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


@dataclass(frozen=True)
class Settings:
    """All that a server is told.

    Attributes:
        catalogue: the environments it makes.
        tokens: who may use it.
        limits: how much they may ask for.
        allowed_calls: names of the methods and attributes that clients may reach.
        context: how the processes of environments start.
        access_log: whether requests are logged.
        allowed_hosts: names it may be asked by, besides its own, where it has no tokens.
        pages_need_token: whether the pages for people and monitors ask for a token.
    """

    catalogue: Catalogue
    tokens: Tokens = field(default_factory=Tokens)
    limits: Limits = field(default_factory=Limits)
    allowed_calls: frozenset[str] = frozenset()
    context: str = field(default_factory=lambda: quickest_context())
    access_log: bool = True
    allowed_hosts: frozenset[str] = frozenset()
    pages_need_token: bool = False


def quickest_context() -> str:
    """The start method for processes of environments: one that is safe beside threads."""
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods else "spawn"


def is_loopback(host: str) -> bool:
    """Whether a server at this address can be reached from its own machine only.

    Raises:
        OSError: there is no such address.
    """
    found = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)
    addresses = {str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
