"""Limits that a server enforces, and the requests and memory of each token and session."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

from xuance_envs.engine.system.current import system
from xuance_envs.remote.server.access import Owner
from xuance_envs.remote.server.settings import LIMIT_SHARES, Limits, Settings
from xuance_envs.remote.wire.failures import RefusedError, body_too_large

logger = logging.getLogger("xuance_envs")

FDS_PER_WORKER = 8  # six for the worker, and one for each of two groups
RESERVED_FDS = 64  # for libraries, the event loop and workers that are starting
MIN_FILES = RESERVED_FDS + 32
PROCESSES_PER_WORKER = 2 if system.HAS_GUARDIANS else 1  # a worker and its guardian

BURST = 1.0  # seconds for which an unused rate accumulates; a burst may use all of it
MAX_DELAY = 10.0  # a rate limit refuses requests that it would delay by more seconds than this
BYTES_PER_NODE = 100  # maximum bytes of memory per value, list or dict of a decoded message
MAX_ACCOUNTS = 4096  # at this number of accounts, idle accounts are removed


class Capacity:
    """Settings of a server, with limits that :meth:`update_limits` adapts."""

    def __init__(self, settings: Settings) -> None:
        self._given = settings
        system.raise_open_files_limit()
        max_files, _ = system.open_files_limits() or (None, None)
        self._max_files: float = math.inf if max_files is None else max_files
        if self._max_files < MIN_FILES:
            raise ValueError(
                f"the server needs a limit of at least {MIN_FILES} open files, got "
                f"{self._max_files}: raise it with ulimit -n or LimitNOFILE"
            )
        self._connections: int | None = None
        self.update_limits()

    @property
    def max_groups(self) -> float:
        """Number of environment groups for which file descriptors suffice; may be infinite."""
        workers = self.limits.processes // PROCESSES_PER_WORKER
        available = self._max_files - RESERVED_FDS - self.limits.connections
        return available - (FDS_PER_WORKER - 2) * workers

    def update_limits(self) -> None:
        """Adapt the limits to the number of token names and to the limit on open files."""
        given, names = self._given.limits, self._given.tokens.count_names()
        by_tokens = self._given.limits_by_tokens if names else frozenset()
        least = {"sessions": 1, "environments": 1, "processes": PROCESSES_PER_WORKER}
        totals = {
            name: max(getattr(given, name), names * least[name])
            for name in LIMIT_SHARES.keys() & by_tokens
        }
        wanted = replace(given, **totals)
        limits = self._fit(wanted)
        self._connections = limits.connections
        shares = {
            share: max(least[name], getattr(limits, name) // names)
            for name, share in LIMIT_SHARES.items()
            if share in by_tokens
        }
        self.limits = limits = replace(limits, **shares)
        self.settings = replace(self._given, limits=limits)
        fields = {name: value or "no limit" for name, value in vars(limits).items()}
        fields["open_files"] = "unlimited" if self._max_files == math.inf else self._max_files
        logger.info(
            "limits: %(sessions)s sessions (%(sessions_per_token)s per token), %(environments)s "
            "environments (%(environments_per_token)s per token), %(processes)s processes "
            "(%(processes_per_token)s per token), %(connections)s connections, %(open_files)s open "
            "files",
            fields,
        )
        if limits.processes < wanted.processes or limits.connections < given.connections:
            logger.warning(
                "the limit of %d open files allows only %d of %d processes and %d of %d "
                "connections: raise it with ulimit -n or LimitNOFILE",
                self._max_files,
                limits.processes,
                wanted.processes,
                limits.connections,
                given.connections,
            )

    def _fit(self, limits: Limits) -> Limits:
        """Reduce workers and connections so that file descriptors suffice for all of them."""
        available = self._max_files - RESERVED_FDS
        connections, workers = self._connections, limits.processes // PROCESSES_PER_WORKER
        if connections is None:
            scale = min(1.0, available / (limits.connections + FDS_PER_WORKER * workers))
            connections = max(1, int(limits.connections * scale))
        most = max(1, (available - connections) / FDS_PER_WORKER)
        if workers > most:
            limits = replace(limits, processes=int(most) * PROCESSES_PER_WORKER)
        return replace(limits, connections=connections)


class RateLimiter:
    """Rate limit that delays requests, or refuses them if the delay would be too long."""

    def __init__(self, unit: str) -> None:
        self.per_second: float | None = None
        self._unit = unit
        self._free_at = 0.0

    def record(self, amount: float = 1.0) -> None:
        if self.per_second is not None:
            self._free_at = max(self._free_at, monotonic() - BURST) + amount / self.per_second

    def delay(self) -> float:
        """Return the seconds until the next request may run; raise if this is too long."""
        if self.per_second is None:
            return 0.0
        seconds = self._free_at - monotonic()
        if seconds > MAX_DELAY:
            text = f"this server limits {self._unit} to {self.per_second:g}: wait {seconds:.0f} s"
            raise RefusedError(429, "rate", text)
        return max(0.0, seconds)


_COUNTED = "environments", "processes", "states", "state_bytes"
# Error code and unit of limits on states; other limits use their names for both.
_STATE_UNITS = {
    "states": ("states", "environment states"),
    "state_bytes": ("states", "bytes of environment states"),
}


class Quota:
    """Usage and limits of a session, token or server; usage includes environments being started."""

    def __init__(self, scope: str, *parents: Quota) -> None:
        self.scope = scope
        self.chain = self, *parents  # usage counts towards all of them
        self.cpu = 0.0
        self.max_cpu: float | None = None
        self.max_memory: int | None = None
        self.requests = RateLimiter(f"requests per second {scope}")
        self.steps = RateLimiter(f"environment steps per second {scope}")
        self._limits: dict[str, int | None] = dict.fromkeys(_COUNTED)
        self._used: Counter[str] = Counter()

    def limit(self, limits: Limits, suffix: str = "") -> None:
        """Set the limits from the fields of ``limits`` that end in ``suffix``; keep the usage."""
        self._limits = {name: getattr(limits, name + suffix) for name in _COUNTED}
        if suffix:  # the whole server has no limits on these
            self.max_memory = getattr(limits, f"memory{suffix}")
            self.max_cpu = getattr(limits, f"cpu{suffix}")
            self.requests.per_second = getattr(limits, f"requests_rate{suffix}")
            self.steps.per_second = getattr(limits, f"steps_rate{suffix}")

    def check(self, **more: int) -> None:
        """Raise if the additional environments, processes or states would exceed a quota."""
        for quota in self.chain:
            scope, max_cpu = quota.scope, quota.max_cpu
            if max_cpu is not None and quota.cpu > max_cpu:
                allowed = f"this server limits CPU seconds {scope} to {max_cpu:g}"
                raise RefusedError(429, "cpu", f"{allowed}, and they are used up")
            for name, count in more.items():
                have, most = quota._used[name], quota._limits[name]
                if most is not None and have + count > most:
                    code, unit = _STATE_UNITS.get(name, (name, name))
                    allowed = f"this server limits {unit} {scope} to {most}"
                    text = f"{allowed}: {have} in use, {count} more requested"
                    raise RefusedError(429, code, text)

    def add(self, **more: int) -> None:
        for quota in self.chain:
            quota._used.update(more)

    def room(self, name: str) -> float:
        """Return the unused amount of a limit."""
        limits = [(quota._limits[name], quota._used[name]) for quota in self.chain]
        return min((most - used for most, used in limits if most is not None), default=math.inf)


class ByteBudget:
    """Budget of bytes; a reservation waits until enough bytes are free."""

    def __init__(self, size: int, purpose: str) -> None:
        self._size = size
        self._purpose = purpose
        self._used = 0
        self._released = asyncio.Condition()

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` could be reserved now; always True if nothing is reserved."""
        return not self._used or self._used + size <= self._size

    @asynccontextmanager
    async def reserve(self, size: int, timeout: float) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._acquire(size), timeout)
        except asyncio.TimeoutError:
            raise RefusedError(
                429, "busy", f"the server is processing too many {self._purpose}: try again later"
            ) from None
        try:
            yield
        finally:
            self._used -= size
            async with self._released:
                self._released.notify_all()

    async def _acquire(self, size: int) -> None:
        async with self._released:
            await self._released.wait_for(lambda: self.has_room(size))
            self._used += size


class Account:
    owner: Owner
    limits: Limits

    def __init__(self) -> None:
        self.requests = 0
        self.sessions = 0
        self.quota = Quota("per token")
        self.large_body_lock = asyncio.Lock()

    def update(self, owner: Owner, limits: Limits) -> None:
        self.owner, self.limits = owner, limits
        self.quota.limit(limits, "_per_token")
        self.max_requests = limits.requests_per_session * limits.sessions_per_token

    @property
    def is_idle(self) -> bool:
        return not self.requests and not self.sessions


def too_many_requests(code: str, limit: int, scope: str) -> RefusedError:
    text = f"this server limits concurrent requests {scope} to {limit}: wait for replies first"
    return RefusedError(429, code, text)


class Accounts:
    """Accounts of a server, and the memory budget for their large requests."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._accounts: dict[bytes, Account] = {}  # by the owner's key
        self._body_budget = ByteBudget(capacity.limits.bodies, "large requests")

    def begin(self, owner: Owner) -> Account:
        """Count a new request in its owner's account; the caller subtracts it when it has ended."""
        if (account := self._accounts.get(owner.key)) is None:
            # A server without tokens accepts any token and creates an account for each.
            if len(self._accounts) >= MAX_ACCOUNTS:
                for idle in [each for each in self._accounts.values() if each.is_idle]:
                    del self._accounts[idle.owner.key]
            account = self._accounts[owner.key] = Account()
        if not (account.sessions or account.requests):  # idle: the limits may have changed
            account.update(owner, self._capacity.settings.limits_of(owner))
        if account.requests >= account.max_requests:
            raise too_many_requests("requests", account.max_requests, "per token")
        account.requests += 1
        return account

    def update_limits(self) -> None:
        """Remove idle accounts of revoked tokens; others get new limits once they are idle."""
        for account in list(self._accounts.values()):
            if account.is_idle and not self._capacity.settings.tokens.accepts(account.owner):
                del self._accounts[account.owner.key]

    @asynccontextmanager
    async def reserve_body(self, account: Account, length: int, limit: int) -> AsyncIterator[None]:
        """Reserve memory for a large body; an account can have one such body at a time."""
        limits = account.limits
        if length > limit:
            raise body_too_large(limit)
        if not account.sessions:
            text = "no open session: open one before you send large requests"
            raise RefusedError(404, "session", text)
        size = length + BYTES_PER_NODE * min(length, limits.nodes)
        async with account.large_body_lock, self._body_budget.reserve(size, limits.upload):
            yield


async def throttle(rates: Iterable[RateLimiter]) -> None:
    if (seconds := max(rate.delay() for rate in rates)) > 0:
        await asyncio.sleep(seconds)
