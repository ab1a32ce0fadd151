"""Sessions, each with an owner, environments and ordered requests, and their registry."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import secrets
import uuid
from asyncio import Semaphore
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.errors import counted
from xuance_envs.remote.server.access import Owner
from xuance_envs.remote.server.hosting.env_host import EnvHost
from xuance_envs.remote.server.hosting.session_process import SessionProcess, usage_of
from xuance_envs.remote.server.http import messages
from xuance_envs.remote.server.http.requests import LARGE_REPLY, LargeReplies, Reply
from xuance_envs.remote.server.limits import (
    PROCESSES_PER_WORKER,
    Account,
    Capacity,
    Quota,
    throttle,
    too_many_requests,
)
from xuance_envs.remote.server.monitoring import Metrics
from xuance_envs.remote.server.settings import MIB
from xuance_envs.remote.wire.failures import RefusedError, no_session, no_state

logger = logging.getLogger("xuance_envs")

STEPS_PER_CPU = 16  # sessions per CPU that may step concurrently
OUT_OF_RESOURCES = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
USAGE_INTERVAL = 2.0  # seconds between measurements of the workers' memory and CPU time


class Session:
    def __init__(
        self,
        account: Account,
        server_quota: Quota,
        number: int,
        message: messages.CreateSession,
        replies: LargeReplies,
    ) -> None:
        limits = account.limits
        self.id = secrets.token_urlsafe(18)
        self.account = account
        self.nonce = message.nonce
        self.quota = Quota("per session", account.quota, server_quota)
        self.quota.limit(limits, "_per_session")
        self.state_numbers = itertools.count(1)
        self.number = number
        self.share_frames = message.share_frames
        self.hosts: list[EnvHost] = []
        self.pending_host: EnvHost | None = None
        self.closed = False
        self.ended_reason: RefusedError | None = None
        self.opened_at = self.last_used = monotonic()
        self._places: dict[str, tuple[EnvHost, int]] = {}
        self._replies = replies
        rates = self.quota.requests, *(quota.steps for quota in self.quota.chain)
        self._rates = [rate for rate in rates if rate.per_second is not None]
        self._waiting = 0
        self._max_waiting = limits.requests_per_session
        self._lock = asyncio.Lock()
        self._sequence = 0
        self._digest = b""
        self._reply: Reply | None = None  # the last one, unless it is large

    @property
    def environments(self) -> int:
        return sum(host.num_envs for host in self.hosts)

    @property
    def steps(self) -> int:
        return sum(host.steps for host in self.hosts)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request; 0 while a request runs."""
        return 0.0 if self._waiting else monotonic() - self.last_used

    async def run_once(
        self, sequence: int | None, digest: bytes, act: Callable[[], Awaitable[Reply]]
    ) -> Reply:
        """Execute a request after earlier ones; answer a repeated request with its first reply."""
        if self._waiting >= self._max_waiting:
            raise too_many_requests("waiting", self._max_waiting, "per session")
        self._waiting += 1
        try:
            async with self._lock:
                if self.closed:
                    raise no_session()
                if self.ended_reason is not None:
                    raise self.ended_reason
                if sequence is not None and sequence == self._sequence:
                    return self._repeat_reply(digest)
                if sequence is not None and sequence < self._sequence:
                    expected = f"expected a sequence number of {self._sequence} or more"
                    text = f"{expected}, got {sequence}: only the last request can be repeated"
                    raise RefusedError(409, "sequence", text)
                if self._rates:
                    await throttle(self._rates)
                    self.quota.requests.record()
                reply = await act()
                if sequence is not None:
                    self._sequence, self._digest = sequence, digest
                    self._keep(reply)
                return reply
        finally:
            self._waiting -= 1
            self.last_used = monotonic()

    def _keep(self, reply: Reply) -> None:
        if self._reply is None:  # the last one was large
            self._replies.discard(self.id)
        self._reply = reply if len(reply.body) < LARGE_REPLY else None
        if self._reply is None and not self.closed:
            self._replies.store(self.id, reply)

    def _repeat_reply(self, digest: bytes) -> Reply:
        if digest != self._digest:
            text = "a different request already used this sequence number"
            raise RefusedError(409, "sequence", text)
        reply = self._reply or self._replies.stored.get(self.id)
        if reply is None:
            text = "the reply to this request was already sent and is no longer stored"
            raise RefusedError(409, "gone", text)
        return reply

    def add(self, host: EnvHost) -> list[str]:
        """Register created environments and return their episode ids."""
        ids = [str(uuid.uuid4()) for _ in range(host.num_envs)]
        self.hosts.append(host)
        self._places.update((episode, (host, place)) for place, episode in enumerate(ids))
        return ids

    def find(
        self, episode_ids: Sequence[str] | None, *, distinct: bool = True
    ) -> tuple[EnvHost, Sequence[int]]:
        """Return the host of these episodes, and the episodes' indices in the host."""
        if not self.hosts:
            raise RefusedError(409, "episodes", "this session has no episodes: create them first")
        if episode_ids is None:
            if len(self.hosts) == 1:
                return self.hosts[0], range(self.hosts[0].num_envs)
            text = "episode_ids is required: several requests created the session's episodes"
            raise RefusedError(422, "episodes", text)
        if distinct and (count := len(set(episode_ids))) != len(episode_ids):
            got = f"{counted(count, 'episode')} in {len(episode_ids)} ids"
            raise RefusedError(422, "episodes", f"expected each episode at most once, got {got}")
        found = []
        for episode in episode_ids:
            if episode not in self._places:
                raise RefusedError(404, "episodes", f"this session has no episode {episode!a}")
            found.append(self._places[episode])
        host, *others = dict.fromkeys(host for host, _ in found)
        if others:
            text = f"expected episodes that one request created, got those of {1 + len(others)}"
            raise RefusedError(422, "episodes", text)
        return host, [place for _, place in found]

    def state_holders(self, numbers: Sequence[int]) -> dict[EnvHost, list[int]]:
        """Group the states' numbers by host; raise if no process keeps one of them."""
        found = self._find_states(numbers)
        if absent := set(numbers).difference(*found.values()):
            raise no_state(min(absent))
        return found

    async def drop_states(self, numbers: Iterable[int]) -> int:
        """Drop states and return how many were dropped; ignore missing states."""
        found = self._find_states(set(numbers))
        for host, kept in found.items():
            await host.drop_states(kept)
        return sum(map(len, found.values()))

    def _find_states(self, numbers: Iterable[int]) -> dict[EnvHost, list[int]]:
        hosts = {host.process: host for host in self.hosts if not host.closed}.values()
        kept = {host: [n for n in numbers if n in host.process.states] for host in hosts}
        return {host: found for host, found in kept.items() if found}

    @property
    def processes(self) -> list[SessionProcess]:
        return list(dict.fromkeys(host.process for host in self.hosts))

    def terminate(self, reason: RefusedError) -> None:
        """End the worker processes; further requests fail with ``reason``."""
        self.ended_reason = reason
        for process in self.processes:
            process.terminate(reason)

    async def close(self) -> None:
        self.closed = True
        self._replies.discard(self.id)
        self._reply = None
        hosts, self.hosts = self.hosts, []
        self._places = {}
        if self.pending_host is not None:
            await self.pending_host.cancel()
        await asyncio.gather(*(host.close() for host in hosts))


class Sessions:
    """Registry of the open sessions, which creates, finds, limits and ends them."""

    def __init__(self, capacity: Capacity, metrics: Metrics, replies: LargeReplies) -> None:
        self._capacity = capacity
        self._settings = settings = capacity.settings
        self._limits = settings.limits
        self._metrics = metrics
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)
        self._replies = replies
        # With hundreds of runnable processes, the kernel would delay some of them for a long time,
        # and CPU caches would be less effective.
        self._step_slots = Semaphore(STEPS_PER_CPU * available_cpus())
        self._quota = Quota("at the same time")
        self.update_limits()
        self._closed_steps: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def update_limits(self) -> None:
        limits = self._capacity.limits
        self._metrics.max_sessions = limits.sessions
        self._quota.limit(limits)

    def open(self, account: Account, message: messages.CreateSession) -> Session:
        """Open a session, or return the one that was opened with the same nonce."""
        if message.nonce is not None:
            for session in self._sessions.values():
                if session.nonce == message.nonce and session.account is account:
                    return session
        for count, limit, scope in (
            (account.sessions, account.limits.sessions_per_token, "per token"),
            (len(self._sessions), self._capacity.limits.sessions, "at the same time"),
        ):
            if count >= limit:
                idle = f"idle sessions are closed after {self._limits.idle:g} s"
                allowed = f"this server allows {counted(limit, 'session')} {scope}"
                raise RefusedError(429, "sessions", f"{allowed}: close one first; {idle}")
        session = Session(account, self._quota, next(self._numbers), message, self._replies)
        account.sessions += 1
        self._sessions[session.id] = session
        self._count()
        logger.info("session %d of %s opened", session.number, account.owner.name)
        return session

    def by_name(self) -> Mapping[str, Mapping[str, int]]:
        """Return the numbers of sessions, environments and steps, by token name."""
        names: dict[str, Counter[str]] = defaultdict(
            lambda: Counter(sessions=0, environments=0, steps=0)
        )
        for name, steps in self._closed_steps.items():
            names[name]["steps"] = steps
        for session in self._sessions.values():
            names[session.account.owner.name].update(
                sessions=1, environments=session.environments, steps=session.steps
            )
        return names

    def get(self, session_id: str, owner: Owner) -> Session:
        session = self._sessions.get(session_id)
        if session is None or session.account.owner.key != owner.key:
            raise no_session(self._limits.idle)
        return session

    async def create_envs(
        self,
        session: Session,
        message: messages.CreateEpisodes,
        functions: Sequence[Callable[..., Any]],
    ) -> tuple[EnvHost, list[str]]:
        session.quota.check(environments=message.num_envs)
        groups = sum(len(each.hosts) + (each.pending_host is not None) for each in self)
        if groups >= self._capacity.max_groups:
            remedy = "create more environments per request, or close a session"
            text = f"the server has no file descriptors for more environments: {remedy}"
            raise RefusedError(429, "full", text)
        process = self._process_for(session, message.num_workers)
        host = EnvHost(message, functions, self._settings, self._metrics, process)
        session.pending_host = host
        try:
            await host.make()
        except Exception as error:
            if session.closed:
                raise no_session(self._limits.idle) from None
            if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
                logger.warning("cannot start a worker for session %d: %s", session.number, error)
                text = "the server cannot start more processes: try again later"
                raise RefusedError(429, "full", text) from None
            raise
        finally:
            if host.make_done:  # otherwise Session.close cancels it
                session.pending_host = None
        if session.closed:  # while the environments were being created
            await host.close()
            raise no_session(self._limits.idle)
        ids = session.add(host)
        self._count()
        return host, ids

    def _process_for(self, session: Session, num_workers: int) -> SessionProcess:
        """Return a new worker process, or an existing one of the session if a quota is reached."""
        running = [process for process in session.processes if process.count()]
        try:
            session.quota.check(processes=PROCESSES_PER_WORKER * num_workers)
        except RefusedError:
            if not running:
                raise
            return min(running, key=lambda process: process.environments)
        return SessionProcess(self._limits.request, session.quota, self._step_slots, num_workers)

    async def close(self, session: Session, reason: str) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.account.sessions -= 1
            name = session.account.owner.name
            if session.steps and self._settings.tokens:  # else the number of names is unbounded
                self._closed_steps[name] += session.steps
            logger.info("session %d of %s closed: %s", session.number, name, reason)
        await session.close()
        self._count()

    async def watch(self) -> None:
        """Terminate sessions that exceed their memory or CPU quota; never returns."""
        while True:
            await asyncio.sleep(USAGE_INTERVAL)
            processes = [process for session in self for process in session.processes]
            by_pid = {worker.pid: each for each in processes for worker in each.workers()}
            if not by_pid:
                continue
            for pid, usage in (await asyncio.to_thread(usage_of, list(by_pid))).items():
                by_pid[pid].usages[pid] = usage
            for session in self:
                self._check_usage(session)

    def _check_usage(self, session: Session) -> None:
        account = session.account
        for quota, sessions in (
            (session.quota, [session]),
            (account.quota, [each for each in self if each.account is account]),
        ):
            processes = [process for each in sessions for process in each.processes]
            usages = [usage for process in processes for usage in process.usages.values()]
            cpu = quota.cpu + sum(usage.cpu for usage in usages)
            memory = sum(usage.memory for usage in usages)
            for used, limit, unit in (
                (cpu, quota.max_cpu, "CPU seconds"),
                (memory / MIB, quota.max_memory and quota.max_memory / MIB, "MiB of memory"),
            ):
                if limit is not None and used > limit and not session.ended_reason:
                    allowed = f"this server limits {unit} {quota.scope} to {limit:g}"
                    text = f"{allowed}, but {used:g} were used"
                    logger.warning("session %d ended: %s", session.number, text)
                    session.terminate(RefusedError(429, "usage", text))

    async def expire(self) -> None:
        """Close idle sessions; never returns."""
        while True:
            await asyncio.sleep(min(1.0, self._limits.idle / 4))
            for session in self:
                if session.idle_seconds > self._limits.idle:
                    reason = f"idle for {self._limits.idle:g} s"
                    closing = asyncio.create_task(self.close(session, reason))
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)

    async def close_all(self) -> None:
        closing = [self.close(session, "the server is shutting down") for session in self]
        await asyncio.gather(*closing, *self._closing)

    def _count(self) -> None:
        self._metrics.sessions = len(self._sessions)
        self._metrics.environments = sum(each.environments for each in self)
