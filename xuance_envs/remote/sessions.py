"""Sessions: whose they are, what they hold, and how often a request in one is done: once."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.remote.access.tokens import Owner
from xuance_envs.remote.failures import RefusedError, no_session
from xuance_envs.remote.host import Host
from xuance_envs.remote.hosted_vec_env import Wanted
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.serving.admission import Account, Tally, slowed
from xuance_envs.remote.serving.alarm import Alarm
from xuance_envs.remote.serving.kept_states import KeptStates
from xuance_envs.remote.serving.process import LONG, SessionProcess
from xuance_envs.remote.serving.replies import LARGE, Replies
from xuance_envs.remote.serving.requests import Reply
from xuance_envs.remote.serving.turnstile import Turnstile
from xuance_envs.remote.serving.usage import usage_of
from xuance_envs.remote.settings import Settings

__all__ = ["Session", "Sessions"]

logger = logging.getLogger("xuance_envs")

AT_A_TIME = 4
"""Sessions that step at the same time, for each CPU."""

FULL = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system says where there can be no more processes or descriptors."""

WATCH = 2.0
"""Seconds between two looks at what processes take."""


class Session:
    """The environments of one client, and the order of its requests.

    Args:
        account: of its token.
        number: counted up by the server; unlike the id it may be shown to anybody.
        share_frames: whether the status page may show what was rendered.
        replies: keeps its last answer, where it is large.
        nonce: what the client calls its opening; None where it does not.

    Attributes:
        id: what the client calls it by.
        account: see above.
        nonce: see above.
        tally: what it has.
        states: those of environments that it keeps.
        hosts: the environments, by creation.
        making: those that are being made.
        closed: whether it has been closed.
        over: why nothing can be done in it any more, where it took too much.
        opened: when it was opened, as :func:`time.monotonic` counts.
        used: when it was last used.
    """

    def __init__(
        self,
        account: Account,
        number: int,
        share_frames: bool,
        replies: Replies,
        nonce: str | None = None,
    ) -> None:
        limits = account.limits
        self.id = secrets.token_urlsafe(18)
        self.account = account
        self.nonce = nonce
        self.tally = Tally(
            "in a session",
            environments=limits.environments_per_session,
            processes=limits.processes_per_session,
            memory=limits.memory_per_session,
            cpu=limits.cpu_per_session,
            requests=limits.requests_rate_per_session,
            steps=limits.steps_rate_per_session,
        )
        self.states = KeptStates(limits)
        self.number = number
        self.share_frames = share_frames
        self.hosts: list[Host] = []
        self.making: Host | None = None
        self.closed = False
        self.over: RefusedError | None = None
        self.opened = self.used = monotonic()
        self._places: dict[str, tuple[Host, int]] = {}
        self._replies = replies
        rates = self.tally.requests, self.tally.steps, account.tally.steps
        self._rates = [rate for rate in rates if rate.is_limited]
        self._waiting = 0
        self._may_wait = limits.requests_per_session
        self._turn = Turnstile(1)
        self._sequence = 0
        self._digest = b""
        self._reply: Reply | None = None  # unless it is large

    @property
    def environments(self) -> int:
        """How many there are."""
        return sum(host.num_envs for host in self.hosts)

    @property
    def steps(self) -> int:
        """How many environment steps were made in it."""
        return sum(host.steps for host in self.hosts)

    @property
    def idle_since(self) -> float | None:
        """Since when nothing was asked of it; None while something is."""
        return None if self._waiting else self.used

    async def in_turn(
        self, sequence: int | None, digest: bytes, act: Callable[[], Awaitable[Reply]]
    ) -> Reply:
        """Does what a request asks for, after those before it, and no second time.

        Args:
            sequence: the request's number; None where the client does not number them.
            digest: of all that the request says.
            act: does it, and raises nothing but what is the server's own fault.

        Raises:
            RefusedError: the number is an older one's, or too many requests are waiting.
        """
        if self._waiting >= self._may_wait:
            raise RefusedError(
                429, "waiting", f"expected at most {self._may_wait} requests of a session at once"
            )
        self._waiting += 1
        try:
            if not self._turn.enter_at_once():
                await self._turn.enter()
            try:
                if self.closed:
                    raise no_session()
                if self.over is not None:
                    raise self.over
                if sequence is not None and sequence == self._sequence:
                    return self._again(digest)
                if sequence is not None and sequence < self._sequence:
                    raise RefusedError(
                        409,
                        "sequence",
                        f"expected a sequence number of {self._sequence} or more, got {sequence}: "
                        "only the last request can be repeated",
                    )
                if self._rates:
                    await slowed(self._rates)
                    self.tally.requests.charge()
                reply = await act()
                if sequence is not None:
                    self._sequence, self._digest = sequence, digest
                    self._keep(reply)
                return reply
            finally:
                self._turn.leave()
        finally:
            self._waiting -= 1
            self.used = monotonic()

    def _keep(self, reply: Reply) -> None:
        self._replies.forget(self.id)
        if len(reply.body) < LARGE:
            self._reply = reply
        elif not self.closed:
            self._reply = None
            self._replies.keep(self.id, reply)

    def _again(self, digest: bytes) -> Reply:
        if digest != self._digest:
            raise RefusedError(
                409, "sequence", "this sequence number was given to another request before"
            )
        reply = self._reply or self._replies.kept(self.id)
        if reply is None:
            raise RefusedError(
                409, "gone", "the answer to this request was sent, and is not kept any more"
            )
        return reply

    def add(self, host: Host) -> list[str]:
        """Takes note of environments that were made; the ids of their episodes."""
        ids = [str(uuid.uuid4()) for _ in range(host.num_envs)]
        self.hosts.append(host)
        self._places.update((episode, (host, place)) for place, episode in enumerate(ids))
        return ids

    def find(
        self, episode_ids: Sequence[str] | None, *, distinct: bool = True
    ) -> tuple[Host, Sequence[int]]:
        """The host of some episodes, and their places in it.

        Args:
            episode_ids: the episodes; None for all.
            distinct: whether none of them may be there twice.

        Raises:
            RefusedError: there is no such episode, or they were not created together.
        """
        if not self.hosts:
            raise RefusedError(409, "episodes", "this session has no episodes: create some first")
        if episode_ids is None:
            if len(self.hosts) == 1:
                return self.hosts[0], range(self.hosts[0].num_envs)
            raise RefusedError(
                422, "episodes", "say which episodes: they were created by several requests"
            )
        if distinct and len(set(episode_ids)) != len(episode_ids):
            raise RefusedError(422, "episodes", "expected each episode at most once")
        found = []
        for episode in episode_ids:
            if episode not in self._places:
                raise RefusedError(404, "episodes", f"this session has no episode {episode!a}")
            found.append(self._places[episode])
        host = found[0][0]
        if any(other is not host for other, _ in found):
            raise RefusedError(
                422, "episodes", "expected episodes that were created by one and the same request"
            )
        return host, [place for _, place in found]

    @property
    def processes(self) -> list[SessionProcess]:
        """Where its environments live."""
        return list(dict.fromkeys(host.process for host in self.hosts))

    def end_for(self, reason: RefusedError) -> None:
        """Ends its processes; every request is told the reason."""
        self.over = reason
        for process in self.processes:
            process.end_for(reason)

    async def close(self) -> None:
        """Closes its environments; again, it does nothing."""
        self.closed = True
        self._replies.forget(self.id)
        self._reply = None
        hosts, self.hosts = self.hosts, []
        self._places = {}
        self.states.clear()
        if self.making is not None:
            await self.making.give_up()
        await asyncio.gather(*(host.close() for host in hosts))


class Sessions:
    """All sessions of a server.

    Args:
        settings: the server's.
        metrics: where they are counted.
        replies: keeps their last answers, where these are large.
    """

    def __init__(self, settings: Settings, metrics: Metrics, replies: Replies) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._metrics = metrics
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)
        self._replies = replies
        self._turnstile = Turnstile(AT_A_TIME * available_cpus())
        self._alarm = Alarm(LONG)
        limits = settings.limits
        self._tally = Tally(
            "at the same time", environments=limits.environments, processes=limits.processes
        )
        self._past: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def open(self, account: Account, share_frames: bool, nonce: str | None = None) -> Session:
        """Opens a session, or returns the one that was opened with the same nonce.

        Raises:
            RefusedError: there are too many.
        """
        if nonce is not None:
            for session in self._sessions.values():
                if session.nonce == nonce and session.account is account:
                    return session
        for count, limit, whose in (
            (account.sessions, account.limits.sessions_per_token, "of one token"),
            (len(self._sessions), self._limits.sessions, "at the same time"),
        ):
            if count >= limit:
                raise RefusedError(
                    429,
                    "sessions",
                    f"this server allows {limit} sessions {whose}: close one first; unused ones "
                    f"are closed after {self._limits.idle:g} s",
                )
        session = Session(account, next(self._numbers), share_frames, self._replies, nonce)
        account.sessions += 1
        self._sessions[session.id] = session
        self._count()
        logger.info("session %d of %s opened", session.number, account.owner.name)
        return session

    def by_name(self) -> dict[str, dict[str, int]]:
        """By name of a token: how many sessions and environments there are, and steps so far."""
        names = {
            name: {"sessions": 0, "environments": 0, "steps": n} for name, n in self._past.items()
        }
        for session in self._sessions.values():
            own = names.setdefault(
                session.account.owner.name, {"sessions": 0, "environments": 0, "steps": 0}
            )
            own["sessions"] += 1
            own["environments"] += session.environments
            own["steps"] += session.steps
        return names

    def get(self, session_id: str, owner: Owner) -> Session:
        """A session, for its owner only.

        Raises:
            RefusedError: there is none of that id, or it is another token's, which nobody tells.
        """
        session = self._sessions.get(session_id)
        if session is None or session.account.owner != owner:
            raise no_session(self._limits.idle)
        return session

    async def create_host(self, session: Session, wanted: Wanted) -> tuple[Host, list[str]]:
        """Makes environments for a session; their host, and the ids of their episodes.

        Raises:
            RefusedError: there are too many.
            Exception: as :meth:`~xuance_envs.remote.host.Host.make` does.
        """
        tallies = session.tally, session.account.tally, self._tally
        for tally in tallies:
            tally.check(environments=len(wanted.functions))
        process = self._process_for(session, tallies)
        host = Host(wanted, self._settings, self._metrics, process, tallies)
        session.making = host
        try:
            await host.make()
        except Exception as error:
            if session.closed:
                raise no_session(self._limits.idle) from None
            if isinstance(error, OSError) and error.errno in FULL:
                logger.warning("no environments for session %d: %s", session.number, error)
                raise RefusedError(
                    429, "full", "the server has no room for more processes: try again later"
                ) from None
            raise
        finally:
            if host.is_made:  # otherwise the session's end sees to it
                session.making = None
        if session.closed:  # while the environments were being made
            await host.close()
            raise no_session(self._limits.idle)
        ids = session.add(host)
        self._count()
        return host, ids

    def _process_for(self, session: Session, tallies: Sequence[Tally]) -> SessionProcess:
        """A process for more environments of a session: a new one, or one of those it has.

        Raises:
            RefusedError: there are too many of others for it to have one at all.
        """
        for process in session.processes:
            process.count()
        try:
            for tally in tallies:
                tally.check(processes=1)
        except RefusedError:
            shared = [process for process in session.processes if process.alive]
            if not shared:
                raise
            return min(shared, key=lambda process: process.environments)
        return SessionProcess(self._limits.request, tallies, self._turnstile, self._alarm)

    async def close(self, session: Session, why: str) -> None:
        """Closes a session, and waits until its processes have ended."""
        if self._sessions.pop(session.id, None) is not None:
            session.account.sessions -= 1
            name = session.account.owner.name
            if session.steps and self._settings.tokens:  # without, there is no end of names
                self._past[name] += session.steps
            logger.info("session %d of %s closed: %s", session.number, name, why)
        await session.close()
        self._count()

    async def watch(self) -> None:
        """Ends sessions whose processes take too much together, whoever started them; for ever."""
        while True:
            await asyncio.sleep(WATCH)
            pids = {pid: each for one in self for each in one.processes if (pid := each.pid)}
            if not pids:
                continue
            for pid, usage in (await asyncio.to_thread(usage_of, list(pids))).items():
                pids[pid].usage = usage
            for session in self:
                self._check_usage(session)

    def _check_usage(self, session: Session) -> None:
        account = session.account
        for tally, sessions in (
            (session.tally, [session]),
            (account.tally, [each for each in self if each.account is account]),
        ):
            usages = [process.usage for each in sessions for process in each.processes]
            cpu = tally.cpu + sum(usage.cpu for usage in usages)
            memory = sum(usage.memory for usage in usages)
            for took, most, what in (
                (cpu, tally.most_cpu, "seconds of CPU"),
                (memory, tally.most_memory, "bytes of memory"),
            ):
                if most is not None and took > most and not session.over:
                    text = f"this server allows {most:g} {what} {tally.whose}, they took {took:g}"
                    logger.warning("session %d ended: %s", session.number, text)
                    session.end_for(RefusedError(429, "usage", text))

    async def expire(self) -> None:
        """Closes sessions as they fall idle, for ever."""
        while True:
            await asyncio.sleep(min(1.0, self._limits.idle / 4))
            now = monotonic()
            for session in self:
                since = session.idle_since
                if since is not None and now - since > self._limits.idle:
                    closing = asyncio.create_task(
                        self.close(session, f"not used for {self._limits.idle:g} s")
                    )
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)

    async def close_all(self) -> None:
        """Closes every session."""
        await asyncio.gather(
            *(self.close(session, "the server ends") for session in self), *self._closing
        )

    def _count(self) -> None:
        self._metrics.sessions = len(self._sessions)
        self._metrics.environments = sum(each.environments for each in self)
