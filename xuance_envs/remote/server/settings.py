"""Settings of a server: environments, tokens, limits and permissions."""

from __future__ import annotations

import ipaddress
import multiprocessing
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from xuance_envs.engine.system.current import system
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.multi_agent.making import make_agents_env
from xuance_envs.remote.server.access import Keywords, Owner, Permissions, Tokens, check_keyword
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.vector_envs.options import StartMethod

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits on clients' requests and resources.

    The server refuses a request beyond a limit with a 4xx status and a message that names the
    limit. Rate limits delay requests, and refuse a request only if the delay would be too long.
    None means no limit.

    Limits per token or per session are separate attributes, such as ``sessions_per_token`` and
    ``environments_per_session``.

    Attributes:
        sessions: concurrent sessions; also per token.
        environments: concurrent environments; also per token and per session.
        processes: concurrent processes; also per token and per session. On Linux, a worker counts
            as two: itself and its guardian. At a limit, new environments share an existing worker
            of the session.
        workers: worker processes (``num_workers``) per request that creates environments.
        requests_per_session: concurrent requests per session, including waiting ones.
        requests_rate_per_token: requests per second per token; also per session.
        steps_rate_per_token: environment steps per second per token; also per session.
        memory: bytes of data per worker process, on Linux. On other systems, the default is None,
            and other values raise ``ValueError``.
        memory_per_token: bytes of memory for all worker processes of a token; also per session.
        cpu_per_token: CPU seconds per token; also per session.
        connections: concurrent connections. If the limit on open files is too low, the server
            reduces ``connections`` and ``processes``.
        body: bytes per request.
        bodies: bytes of memory for all large requests in progress, including decoded messages.
        nodes: values, lists and dicts per request.
        reply: bytes per reply, in the requested format.
        replies: bytes for all large replies in progress.
        kept: bytes for all large replies that are stored in case their request is repeated.
        states: saved environment states; also per token and per session.
        state_bytes: bytes of saved environment states; also per token and per session. States
            are in the memory of worker processes, so the limits on memory include them.
        repeats: steps of one environment per request.
        idle: seconds after which an idle session is closed.
        request: seconds that environments may take per request before their process is killed.
        start: seconds that creating environments may take.
        head: seconds that a client may take for a TLS handshake, and to send the head of a request.
        upload: seconds that a client may take to send the body of a request.
        write: seconds that a client may take to receive each MiB of a reply.
    """

    sessions: int = 64
    sessions_per_token: int = 8
    environments: int = 1024
    environments_per_token: int | None = 512
    environments_per_session: int = 256
    processes: int = 256
    processes_per_token: int | None = 64
    processes_per_session: int = 16
    workers: int = 1
    requests_per_session: int = 8
    requests_rate_per_token: float | None = None
    requests_rate_per_session: float | None = None
    steps_rate_per_token: float | None = None
    steps_rate_per_session: float | None = None
    memory: int | None = 4096 * MIB if system.LIMITS_MEMORY else None
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
    states: int = 100_000
    states_per_token: int | None = 40_000
    states_per_session: int = 10_000
    state_bytes: int = 1024 * MIB
    state_bytes_per_token: int | None = 256 * MIB
    state_bytes_per_session: int = 64 * MIB
    repeats: int = 1000
    idle: float = 600.0
    request: float = 60.0
    start: float = 60.0
    head: float = 10.0
    upload: float = 30.0
    write: float = 30.0

    def __post_init__(self) -> None:
        if self.memory is not None and not system.LIMITS_MEMORY:
            raise ValueError(
                f"memory: expected None, because {system.NAME} does not limit the memory of "
                f"processes, got {self.memory}: omit it, or run the server on Linux"
            )


# Limits of the whole server, and the corresponding limits per token.
LIMIT_SHARES = {name: f"{name}_per_token" for name in ("sessions", "environments", "processes")}


class Catalogue:
    """Environments that clients may create.

    Args:
        environments: factory of each environment, by the id that clients use. A factory receives
            the client's keyword arguments, and ``env_seed`` if the client gives a seed. Use
            :func:`~xuance_envs.multi_agent.adapters.agents_env` for multi-agent environments.
        allowed_kwargs: names of keyword arguments that clients may give, or a mapping from each
            name to its allowed values, or to None for any value.

    Raises:
        ValueError: there are no environments.
    """

    def __init__(
        self,
        environments: Mapping[str, Callable[..., Any]],
        allowed_kwargs: Iterable[str] | Keywords = (),
    ) -> None:
        if not environments:
            raise ValueError("environments: expected at least one environment to serve, got none")
        self._environments = dict(environments)
        self._allowed_kwargs: Keywords = (
            dict(allowed_kwargs)
            if isinstance(allowed_kwargs, Mapping)
            else dict.fromkeys(allowed_kwargs)
        )

    @classmethod
    def of_ids(
        cls,
        ids: Iterable[str],
        allowed_kwargs: Iterable[str] | Keywords = (),
        multi_agent: Iterable[str] = (),
    ) -> Catalogue:
        """Create a catalogue from Gymnasium ids and modules of multi-agent environments.

        Args:
            ids: Gymnasium ids; each environment is created as a ``Gym_Env``.
            allowed_kwargs: as for the class.
            multi_agent: modules of multi-agent environments, as ``"package:name"``; see
                :func:`~xuance_envs.multi_agent.making.make_multi_agent_vec`.
        """
        for name, given in (("ids", ids), ("multi_agent", multi_agent)):
            if isinstance(given, str):
                raise TypeError(f"{name}: expected a list of ids, got {given!r}")
        single = {env_id: partial(_make_gym_env, env_id) for env_id in ids}
        multi = {name: partial(make_agents_env, name) for name in multi_agent}
        return cls({**single, **multi}, allowed_kwargs)

    @property
    def ids(self) -> list[str]:
        """Environment ids in the given order."""
        return list(self._environments)

    def functions(
        self, env_id: str | None, num_envs: int, kwargs: Mapping[str, Any]
    ) -> list[Callable[..., Any]]:
        """Return ``num_envs`` factories of an environment, or refuse ``env_id`` or its ``kwargs``.

        ``env_id`` may be None if the server offers only one environment.
        """
        offered = f"this server offers {', '.join(map(repr, self._environments))}"
        if env_id is None:
            if len(self._environments) > 1:
                raise RefusedError(422, "env_id", f"env_id is required: {offered}")
            (env_id,) = self._environments
        if env_id not in self._environments:
            raise RefusedError(404, "env_id", f"no environment {env_id!a}: {offered}")
        for name in sorted(kwargs):
            check_keyword(name, kwargs[name], self._allowed_kwargs)
        return [partial(self._environments[env_id], **kwargs)] * num_envs


def _make_gym_env(env_id: str, *, env_seed: int | None = None, **kwargs: Any) -> Gym_Env:
    return Gym_Env(env_id, seed=env_seed, **kwargs)


def safe_context() -> StartMethod:
    """Return the fastest start method that is safe in a process with threads."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        catalogue: environments that clients may create.
        tokens: accepted tokens.
        limits: limits on clients' requests and resources.
        permissions: names that clients may call, get and set, and infos that they receive.
        context: start method of worker processes; by default the fastest that is safe with threads.
        access_log: whether requests are logged.
        allowed_hosts: additional accepted host names for a server without tokens.
        pages_need_token: whether the status page's data, ``/metrics`` and ``/openapi.json`` require
            a token.
        watch_tokens: whether the server reloads the tokens file after each change. SIGHUP also
            reloads it if the server runs in the main thread.
        shutdown_grace: seconds for requests in progress to finish when the server stops; None (the
            default) for the larger of ``limits.request`` and ``limits.start``.
        limits_by_tokens: names of limits that the server adapts to the number N of names in
            ``tokens``, unless N is 0. It raises ``sessions`` and ``environments`` to at least N,
            and ``processes`` to at least N (on Linux 2 N). It sets limits per token, such as
            ``sessions_per_token``, to equal shares of the total.
    """

    catalogue: Catalogue
    tokens: Tokens = field(default_factory=Tokens)
    limits: Limits = field(default_factory=Limits)
    permissions: Permissions = field(default_factory=Permissions)
    context: StartMethod = field(default_factory=safe_context)
    access_log: bool = True
    allowed_hosts: frozenset[str] = frozenset()
    pages_need_token: bool = False
    watch_tokens: bool = False
    shutdown_grace: float | None = None
    limits_by_tokens: frozenset[str] = frozenset()

    @property
    def seconds_to_finish(self) -> float:
        """Seconds for requests in progress to finish when the server stops."""
        if self.shutdown_grace is not None:
            return self.shutdown_grace
        return max(self.limits.request, self.limits.start)

    def limits_of(self, owner: Owner) -> Limits:
        """Return the limits of one owner: ``limits``, overridden by its line in the tokens file."""
        return replace(self.limits, **dict[str, Any](owner.limits))


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from its own machine."""
    found = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)
    addresses = {str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
