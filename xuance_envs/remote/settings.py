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
from xuance_envs.multi_agent.making import make_agents_env
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

    Rates are an exception: who is faster is slowed, and refused only where it would wait too long.

    Attributes:
        sessions: sessions at the same time.
        sessions_per_token: of these, of one token.
        environments: environments at the same time.
        environments_per_token: of these, of one token; None for any number, here and below.
        environments_per_session: of these, in one session.
        processes: processes for environments at the same time.
        processes_per_token: of these, of one token.
        processes_per_session: of these, of one session, where each creation of episodes takes one
            as long as there may be more, and then shares one of its session's.
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
        states_per_session: states of environments that are kept in one session.
        state_bytes_per_session: bytes of these.
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
    states_per_session: int = 10_000
    state_bytes_per_session: int = 64 * MIB
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
            the keyword arguments a client gave, and with ``env_seed`` if it gave a seed. One with
            many agents is made by :func:`~xuance_envs.multi_agent.adapters.agents_env`.
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
        multi_agent: Iterable[str] = (),
    ) -> Catalogue:
        """A catalogue of Gymnasium's ids, each made as a ``Gym_Env``.

        Args:
            ids: the ids.
            allowed_kwargs: as for the class.
            multi_agent: modules of environments with many agents, as ``"package:name"``; see
                :func:`~xuance_envs.multi_agent.making.make_multi_agent_vec`.
        """
        environments: dict[str, Callable[..., Any]] = {
            **{env_id: partial(_make_gym_env, env_id) for env_id in ids},
            **{name: partial(make_agents_env, name) for name in multi_agent},
        }
        return cls(environments, allowed_kwargs)

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
        allowed_hosts: names it may be asked by, besides its own, where it has no tokens.
        pages_need_token: whether the pages for people and monitors ask for a token.
        watch_tokens: whether the file of tokens is read again when it changes; it is at SIGHUP in
            any case.
    """

    catalogue: Catalogue
    tokens: Tokens = field(default_factory=Tokens)
    limits: Limits = field(default_factory=Limits)
    permissions: Permissions = field(default_factory=Permissions)
    context: str = field(default_factory=lambda: quickest_context())
    access_log: bool = True
    allowed_hosts: frozenset[str] = frozenset()
    pages_need_token: bool = False
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
