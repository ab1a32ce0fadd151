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
from xuance_envs.remote.serving.room import Room
from xuance_envs.remote.settings import Limits, Settings

__all__ = ["Account", "Accounts", "Rate", "Tally", "slowed"]

BURST = 1.0
"""Seconds of a rate that may be used at once."""

SLOWEST = 10.0
"""Seconds that a request may have to wait for a rate; it is refused if it would be more."""

NODE = 100
"""Bytes that a value, a list or a dict of a message takes at most when it has been decoded."""


MANY = 4096
"""Accounts from which on those are forgotten that have nothing."""


class Rate:
    """So much per second: who is faster has to wait.

    Args:
        per_second: how much; None for any.
        what: of what, for errors.
    """

    def __init__(self, per_second: float | None, what: str) -> None:
        self._per_second = per_second
        self._what = what
        self._free = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether it is one."""
        return self._per_second is not None

    def charge(self, amount: float = 1.0) -> None:
        """Takes note of what was done."""
        if self._per_second is not None:
            now = monotonic()
            self._free = max(self._free, now - BURST) + amount / self._per_second

    def delay(self) -> float:
        """Seconds until more may be done.

        Raises:
            RefusedError: they are too many to wait for.
        """
        if self._per_second is None:
            return 0.0
        seconds = self._free - monotonic()
        if seconds > SLOWEST:
            raise RefusedError(
                429,
                "rate",
                f"this server allows {self._per_second:g} {self._what}: wait {seconds:.0f} s",
            )
        return max(0.0, seconds)


class Tally:
    """What somebody has, those things included that are being made, and what they may have.

    Args:
        whose: for errors, such as ``in a session``.
        environments: how many there may be; None for any number, here and below.
        processes: how many processes there may be for them.
        memory: bytes these may have together.
        cpu: seconds they may have taken together.
        requests: requests per second.
        steps: environment steps per second.

    Attributes:
        environments: how many there are.
        processes: how many there are.
        requests: that rate.
        steps: that rate.
        most_memory: see above.
        most_cpu: see above.
        cpu: seconds that processes took which have ended since.
    """

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
        self.most_memory = memory
        self.most_cpu = cpu
        self.requests = Rate(requests, f"requests per second {whose}")
        self.steps = Rate(steps, f"environment steps per second {whose}")
        self._most = {"environments": environments, "processes": processes}

    def check(self, **more: int) -> None:
        """Raises where there would be too many, or too much has been taken already.

        Raises:
            RefusedError: that is so.
        """
        if self.most_cpu is not None and self.cpu > self.most_cpu:
            raise RefusedError(
                429,
                "cpu",
                f"this server allows {self.most_cpu:g} seconds of CPU {self.whose}: they are over",
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
    """What one token has under way.

    Args:
        owner: whose it is.
        limits: what it may have.

    Attributes:
        owner: whose it is.
        limits: what it may have.
        requests: requests under way.
        sessions: sessions there are.
        tally: what these have.
        large: is held by its one request that has a large body.
    """

    def __init__(self, owner: Owner, limits: Limits) -> None:
        self.owner = owner
        self.limits = limits
        self.requests = 0
        self.sessions = 0
        self.tally = Tally(
            "of one token",
            environments=limits.environments_per_token,
            processes=limits.processes_per_token,
            memory=limits.memory_per_token,
            cpu=limits.cpu_per_token,
            requests=limits.requests_rate_per_token,
            steps=limits.steps_rate_per_token,
        )
        self.large = asyncio.Lock()
        self._most = limits.requests_per_session * limits.sessions_per_token

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing, and nothing under way."""
        return not self.requests and not self.sessions

    def begin(self) -> None:
        """A request begins.

        Raises:
            RefusedError: too many are under way.
        """
        if self.requests >= self._most:
            raise RefusedError(
                429, "requests", f"expected at most {self._most} requests of a token at once"
            )
        self.requests += 1


class Accounts:
    """The accounts of a server, and what all of them share.

    Args:
        settings: the server's.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._accounts: dict[Owner, Account] = {}
        self._room = Room(settings.limits.bodies, "large requests")

    def begin(self, owner: Owner) -> Account:
        """A request of an owner begins; :meth:`end` has to follow.

        Raises:
            RefusedError: too many are under way.
        """
        account = self._accounts.get(owner)
        if account is None:
            if len(self._accounts) >= MANY:  # without tokens anybody can make some up
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
    async def room(self, account: Account, length: int) -> AsyncIterator[None]:
        """Holds what a large body takes: one at a time for an account, and so much for all.

        Args:
            account: whose body it is.
            length: its bytes.

        Raises:
            RefusedError: it is too large, there is no session it could be for, or there was no
                room in time.
        """
        limits = account.limits
        if length > limits.body:
            raise RefusedError(413, "body", f"expected a request of at most {limits.body} bytes")
        if not account.sessions:
            raise RefusedError(
                404, "session", "no such session: a large request has to be for one there is"
            )
        size = length + NODE * min(length, limits.nodes)
        async with account.large, self._room.hold(size, limits.upload):
            yield


async def slowed(rates: Iterable[Rate]) -> None:
    """Waits until more may be done, where it has been too much.

    Raises:
        RefusedError: that is too long to wait for.
    """
    if (seconds := max(rate.delay() for rate in rates)) > 0:
        await asyncio.sleep(seconds)
