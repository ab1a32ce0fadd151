"""What requests may cost, decided before anything is done for them.

Every request passes here after its head has come and before its body is read. It belongs to an
account, which is a token's, and the account has so much of everything under way: requests, bodies,
and what its sessions hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from time import monotonic

from xuance_envs.remote.access.tokens import Owner
from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.serving.byte_budget import ByteBudget
from xuance_envs.remote.settings import Limits, Settings

__all__ = ["Account", "Accounts", "Quota", "RateLimiter", "throttle"]

BURST = 1.0
"""Seconds of a rate that may be used at once."""

MAX_DELAY = 10.0
"""Seconds that a request may have to wait for a rate; it is refused if it would be more."""

BYTES_PER_NODE = 100
"""Bytes that a value, a list or a dict of a message takes at most when it has been decoded."""


MAX_ACCOUNTS = 4096
"""Accounts from which on those are forgotten that have nothing."""


class RateLimiter:
    """So much per second: who is faster has to wait."""

    def __init__(self, per_second: float | None, what: str) -> None:
        self._per_second = per_second
        self._what = what
        self._free = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether it is one."""
        return self._per_second is not None

    def record(self, amount: float = 1.0) -> None:
        """Takes note of what was done."""
        if self._per_second is not None:
            now = monotonic()
            self._free = max(self._free, now - BURST) + amount / self._per_second

    def delay(self) -> float:
        """Seconds until more may be done."""
        if self._per_second is None:
            return 0.0
        seconds = self._free - monotonic()
        if seconds > MAX_DELAY:
            raise RefusedError(
                429,
                "rate",
                f"this server allows {self._per_second:g} {self._what}: wait {seconds:.0f} s",
            )
        return max(0.0, seconds)


class Quota:
    """What somebody has, those things included that are being made, and what they may have."""

    def __init__(
        self,
        whose: str,
        *,
        environments: int | None = None,
        processes: int | None = None,
        memory: int | None = None,
        cpu: float | None = None,
        requests: float | None = None,
        steps: float | None = None,
    ) -> None:
        self.whose = whose
        self.environments = 0
        self.processes = 0
        self.cpu = 0.0
        self.max_memory = memory
        self.max_cpu = cpu
        self.requests = RateLimiter(requests, f"requests per second {whose}")
        self.steps = RateLimiter(steps, f"environment steps per second {whose}")
        self._most = {"environments": environments, "processes": processes}

    def check(self, **more: int) -> None:
        """Raises where there would be too many, or too much has been taken already."""
        if self.max_cpu is not None and self.cpu > self.max_cpu:
            raise RefusedError(
                429,
                "cpu",
                f"this server allows {self.max_cpu:g} seconds of CPU {self.whose}: they are over",
            )
        for name, count in more.items():
            have, most = getattr(self, name), self._most[name]
            if most is not None and have + count > most:
                raise RefusedError(
                    429,
                    name,
                    f"this server allows {most} {name} {self.whose}: there are {have}, "
                    f"and {count} more were asked for",
                )

    def add(self, environments: int, processes: int) -> None:
        """Takes note of more, or of fewer."""
        self.environments += environments
        self.processes += processes


class Account:
    """What one token has under way."""

    def __init__(self, owner: Owner, limits: Limits) -> None:
        self.owner = owner
        self.limits = limits
        self.requests = 0
        self.sessions = 0
        self.quota = Quota(
            "of one token",
            environments=limits.environments_per_token,
            processes=limits.processes_per_token,
            memory=limits.memory_per_token,
            cpu=limits.cpu_per_token,
            requests=limits.requests_rate_per_token,
            steps=limits.steps_rate_per_token,
        )
        self.large_body_lock = asyncio.Lock()
        self._most = limits.requests_per_session * limits.sessions_per_token

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing, and nothing under way."""
        return not self.requests and not self.sessions

    def begin(self) -> None:
        """A request begins."""
        if self.requests >= self._most:
            raise RefusedError(
                429, "requests", f"expected at most {self._most} requests of a token at once"
            )
        self.requests += 1


class Accounts:
    """The accounts of a server, and what all of them share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._accounts: dict[Owner, Account] = {}
        self._body_budget = ByteBudget(settings.limits.bodies, "large requests")

    def begin(self, owner: Owner) -> Account:
        """A request of an owner begins; :meth:`end` has to follow."""
        account = self._accounts.get(owner)
        if account is None:
            if len(self._accounts) >= MAX_ACCOUNTS:  # without tokens anybody can make some up
                self.forget_idle()
            limits = self._settings.limits_of(owner)
            account = self._accounts[owner] = Account(owner, limits)
        account.begin()
        return account

    def forget_idle(self) -> None:
        """Forgets the accounts that have nothing; their owners' next requests begin new ones."""
        for idle in [each for each in self._accounts.values() if each.is_idle]:
            del self._accounts[idle.owner]

    def end(self, account: Account) -> None:
        """A request ends."""
        account.requests -= 1

    @asynccontextmanager
    async def reserve_body(self, account: Account, length: int) -> AsyncIterator[None]:
        """Holds what a large body takes: one at a time for an account, and so much for all."""
        limits = account.limits
        if length > limits.body:
            raise RefusedError(413, "body", f"expected a request of at most {limits.body} bytes")
        if not account.sessions:
            raise RefusedError(
                404, "session", "no such session: a large request has to be for one there is"
            )
        size = length + BYTES_PER_NODE * min(length, limits.nodes)
        async with account.large_body_lock, self._body_budget.reserve(size, limits.upload):
            yield


async def throttle(rates: Iterable[RateLimiter]) -> None:
    """Waits until more may be done, where it has been too much."""
    if (seconds := max(rate.delay() for rate in rates)) > 0:
        await asyncio.sleep(seconds)
