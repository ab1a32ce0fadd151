"""What a server hosts, for whom, and how much of it."""

from __future__ import annotations

import ipaddress
import multiprocessing
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.remote.access.permissions import Permissions, check_keyword
from xuance_envs.remote.access.tokens import TOKENS_VARIABLE, Owner, Tokens
from xuance_envs.remote.failures import RefusedError

__all__ = [
    "TOKENS_VARIABLE",
    "Catalogue",
    "Limits",
    "Permissions",
    "Settings",
    "Tokens",
    "is_loopback",
]

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What clients may ask for. A request for more is refused with a 4xx that says so.

    Attributes:
        sessions: sessions at the same time.
        sessions_per_token: of these, of one token.
        environments: environments at the same time.
        environments_per_session: of these, in one session.
        requests_per_session: requests of one session that wait for their turn.
        body: bytes of a request.
        reply: bytes of the observations in one reply.
        repeats: steps of one environment per request.
        idle: seconds after which a session that is not used is closed.
        request: seconds the environments may take for one request before their process is killed.
        start: seconds they may take to be made.
        upload: seconds the body of a request may take to arrive.
        memory: bytes of data the process of a session's environments may have; None for no limit.
    """

    sessions: int = 64
    sessions_per_token: int = 8
    environments: int = 1024
    environments_per_session: int = 256
    requests_per_session: int = 8
    body: int = 16 * MIB
    reply: int = 256 * MIB
    repeats: int = 1000
    idle: float = 600.0
    request: float = 60.0
    start: float = 60.0
    upload: float = 30.0
    memory: int | None = 4096 * MIB


class Catalogue:
    """The environments a server makes: nothing else can be asked for.

    Args:
        environments: by the id that clients use, what makes one environment. It is called with
            the keyword arguments a client gave, and with ``env_seed`` if it gave a seed.
        allowed_kwargs: the keyword arguments a client may give; as a mapping, with the values that
            each may have, None for any.
    """

    def __init__(
        self,
        environments: Mapping[str, Callable[..., Any]],
        allowed_kwargs: Iterable[str] | Mapping[str, tuple[Any, ...] | None] = (),
    ) -> None:
        if not environments:
            raise ValueError("expected at least one environment to serve, got none")
        self._environments = dict(environments)
        self._allowed_kwargs: dict[str, tuple[Any, ...] | None] = (
            dict(allowed_kwargs)
            if isinstance(allowed_kwargs, Mapping)
            else dict.fromkeys(allowed_kwargs)
        )

    @classmethod
    def of_ids(
        cls,
        ids: Iterable[str],
        allowed_kwargs: Iterable[str] | Mapping[str, tuple[Any, ...] | None] = (),
    ) -> Catalogue:
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
            RefusedError: there is no such id, or a keyword argument or its value is not allowed.
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
        for name in sorted(kwargs):
            check_keyword(name, kwargs[name], self._allowed_kwargs)
        return [partial(self._environments[env_id], **kwargs)] * num_envs

    def _listed(self) -> str:
        return ", ".join(map(repr, self._environments))


def _make_gym_env(env_id: str, *, env_seed: int | None = None, **kwargs: Any) -> Gym_Env:
    return Gym_Env(env_id, seed=env_seed, **kwargs)


@dataclass(frozen=True)
class Settings:
    """All that a server is told.

    Attributes:
        catalogue: the environments it makes.
        tokens: who may use it.
        limits: how much they may ask for.
        permissions: what clients may do with the environments, and are told of them.
        context: how the processes of environments start.
        access_log: whether requests are logged.
        watch_tokens: whether the file of tokens is read again when it changes; it is at SIGHUP in
            any case.
    """

    catalogue: Catalogue
    tokens: Tokens = field(default_factory=Tokens)
    limits: Limits = field(default_factory=Limits)
    permissions: Permissions = field(default_factory=Permissions)
    context: str = field(default_factory=lambda: quickest_context())
    access_log: bool = True
    watch_tokens: bool = False

    def limits_of(self, owner: Owner) -> Limits:
        """The limits of one owner."""
        own: dict[str, Any] = dict(owner.limits)
        return replace(self.limits, **own) if own else self.limits


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
