"""Sessions: owners, environments, request order, and replies to repeated requests."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from time import monotonic

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.remote.access.tokens import Owner
from xuance_envs.remote.env_host import EnvHost
from xuance_envs.remote.failures import RefusedError, no_session
from xuance_envs.remote.hosted_vec_env import HostedEnvConfig
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.serving.admission import Account, Quota, throttle
from xuance_envs.remote.serving.capacity import PROCESSES_PER_WORKER, Capacity
from xuance_envs.remote.serving.fifo_semaphore import FifoSemaphore
from xuance_envs.remote.serving.large_replies import LARGE_REPLY, LargeReplies
from xuance_envs.remote.serving.requests import Reply
from xuance_envs.remote.serving.session_process import SLOW_STEP, SessionProcess
from xuance_envs.remote.serving.shared_timer import SharedTimer
from xuance_envs.remote.serving.usage import usage_of

logger = logging.getLogger("xuance_envs")

STEPS_PER_CPU = 4  # sessions per CPU that may step concurrently
OUT_OF_RESOURCES = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
USAGE_INTERVAL = 2.0  # seconds between measurements of the workers' memory and CPU time


class Session:
    """Environments of one client and the order of its requests."""

    def __init__(
        self,
        account: Account,
        number: int,
        share_frames: bool,
        replies: LargeReplies,
        nonce: str | None = None,
    ) -> None:
        limits = account.limits
        self.id = secrets.token_urlsafe(18)
        self.account = account
        self.nonce = nonce
        self.quota = Quota("per session")
        self.quota.limit(
            environments=limits.environments_per_session,
            processes=limits.processes_per_session,
            memory=limits.memory_per_session,
            cpu=limits.cpu_per_session,
            requests=limits.requests_rate_per_session,
            steps=limits.steps_rate_per_session,
            states=limits.states_per_session,
            state_bytes=limits.state_bytes_per_session,
        )
        self.state_numbers = itertools.count(1)
        self.number = number
        self.share_frames = share_frames
        self.hosts: list[EnvHost] = []
        self.pending_host: EnvHost | None = None
        self.closed = False
        self.ended_reason: RefusedError | None = None
        self.opened_at = self.last_used = monotonic()
        self._places: dict[str, tuple[EnvHost, int]] = {}
        self._replies = replies
        rates = self.quota.requests, self.quota.steps, account.quota.steps
        self._rates = [rate for rate in rates if rate.is_limited]
        self._waiting = 0
        self._max_waiting = limits.requests_per_session
        self._lock = FifoSemaphore(1)
        self._sequence = 0
        self._digest = b""
        self._reply: Reply | None = None  # unless it is large

    @property
    def environments(self) -> int:
        return sum(host.num_envs for host in self.hosts)

    @property
    def steps(self) -> int:
        return sum(host.steps for host in self.hosts)

    @property
    def idle_since(self) -> float | None:
        """Time of the last request; None while a request runs."""
        return None if self._waiting else self.last_used

    async def run_once(
        self, sequence: int | None, digest: bytes, act: Callable[[], Awaitable[Reply]]
    ) -> Reply:
        """Execute a request in turn; answer a repeated request with its first reply."""
        if self._waiting >= self._max_waiting:
            raise RefusedError(
                429,
                "waiting",
                f"this server allows {self._max_waiting} concurrent requests per session: wait for "
                "replies first",
            )
        self._waiting += 1
        try:
            if not self._lock.try_acquire():
                await self._lock.acquire()
            try:
                if self.closed:
                    raise no_session()
                if self.ended_reason is not None:
                    raise self.ended_reason
                if sequence is not None and sequence == self._sequence:
                    return self._repeat_reply(digest)
                if sequence is not None and sequence < self._sequence:
                    raise RefusedError(
                        409,
                        "sequence",
                        f"expected a sequence number of {self._sequence} or more, got {sequence}: "
                        "only the last request can be repeated",
                    )
                if self._rates:
                    await throttle(self._rates)
                    self.quota.requests.record()
                reply = await act()
                if sequence is not None:
                    self._sequence, self._digest = sequence, digest
                    self._keep(reply)
                return reply
            finally:
                self._lock.release()
        finally:
            self._waiting -= 1
            self.last_used = monotonic()

    def _keep(self, reply: Reply) -> None:
        self._replies.discard(self.id)
        if len(reply.body) < LARGE_REPLY:
            self._reply = reply
        elif not self.closed:
            self._reply = None
            self._replies.store(self.id, reply)

    def _repeat_reply(self, digest: bytes) -> Reply:
        if digest != self._digest:
            raise RefusedError(
                409, "sequence", "a different request already used this sequence number"
            )
        reply = self._reply or self._replies.get(self.id)
        if reply is None:
            raise RefusedError(
                409, "gone", "the reply to this request was already sent and is no longer stored"
            )
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
            raise RefusedError(
                422,
                "episodes",
                "episode_ids are required, because several requests created the session's episodes",
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
            raise RefusedError(422, "episodes", "expected episodes created by the same request")
        return host, [place for _, place in found]

    def state_holders(self, numbers: Sequence[int]) -> dict[EnvHost, list[int]]:
        """Group states by a host in the process that keeps them; raise if one is missing."""
        found = self._find_states(numbers)
        if absent := set(numbers).difference(*found.values()):
            raise RefusedError(
                404,
                "states",
                f"this session has no state {min(absent)}: it may have been dropped, or have ended "
                "with the worker process that kept it",
            )
        return found

    async def drop_states(self, numbers: Iterable[int]) -> int:
        """Drop states and return how many were dropped; ignore missing states."""
        found = self._find_states(set(numbers))
        for host, kept in found.items():
            await host.drop_states(kept)
        return sum(map(len, found.values()))

    def _find_states(self, numbers: Iterable[int]) -> dict[EnvHost, list[int]]:
        hosts = {host.process: host for host in self.hosts if not host.closed}.values()
        kept = {host: [n for n in numbers if n in host.process.states.sizes] for host in hosts}
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
    def __init__(self, capacity: Capacity, metrics: Metrics, replies: LargeReplies) -> None:
        self._capacity = capacity
        self._settings = settings = capacity.settings
        self._limits = settings.limits
        self._metrics = metrics
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)
        self._replies = replies
        self._step_slots = FifoSemaphore(STEPS_PER_CPU * available_cpus())
        self._slow_step_timer = SharedTimer(SLOW_STEP)
        self._quota = Quota("at the same time")
        self.update_limits()
        self._closed_steps: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def update_limits(self) -> None:
        """Apply the current limits."""
        limits = self._capacity.limits
        self._metrics.max_sessions = limits.sessions
        self._quota.limit(
            environments=limits.environments,
            processes=limits.processes,
            states=limits.states,
            state_bytes=limits.state_bytes,
        )

    def open(self, account: Account, share_frames: bool, nonce: str | None = None) -> Session:
        """Open a session, or return the one that was opened with the same nonce."""
        if nonce is not None:
            for session in self._sessions.values():
                if session.nonce == nonce and session.account is account:
                    return session
        for count, limit, scope in (
            (account.sessions, account.limits.sessions_per_token, "per token"),
            (len(self._sessions), self._capacity.limits.sessions, "at the same time"),
        ):
            if count >= limit:
                raise RefusedError(
                    429,
                    "sessions",
                    f"this server allows {limit} sessions {scope}: close one first; idle sessions "
                    f"are closed after {self._limits.idle:g} s",
                )
        session = Session(account, next(self._numbers), share_frames, self._replies, nonce)
        account.sessions += 1
        self._sessions[session.id] = session
        self._count()
        logger.info("session %d of %s opened", session.number, account.owner.name)
        return session

    def by_name(self) -> dict[str, dict[str, int]]:
        """Return the numbers of sessions, environments and steps, by token name."""
        names = {
            name: {"sessions": 0, "environments": 0, "steps": n}
            for name, n in self._closed_steps.items()
        }
        for session in self._sessions.values():
            counts = names.setdefault(
                session.account.owner.name, {"sessions": 0, "environments": 0, "steps": 0}
            )
            counts["sessions"] += 1
            counts["environments"] += session.environments
            counts["steps"] += session.steps
        return names

    def get(self, session_id: str, owner: Owner) -> Session:
        session = self._sessions.get(session_id)
        if session is None or session.account.owner != owner:
            raise no_session(self._limits.idle)
        return session

    async def create_envs(
        self, session: Session, config: HostedEnvConfig
    ) -> tuple[EnvHost, list[str]]:
        """Create environments in a session; return their host and episode ids."""
        quotas = session.quota, session.account.quota, self._quota
        for quota in quotas:
            quota.check(environments=len(config.functions))
        groups = sum(len(each.hosts) + (each.pending_host is not None) for each in self)
        if self._capacity.max_groups is not None and groups >= self._capacity.max_groups:
            raise RefusedError(
                429,
                "full",
                "the server has no file descriptors for more environments: create more of them in "
                "one request, or close a session",
            )
        process = self._process_for(session, quotas)
        host = EnvHost(config, self._settings, self._metrics, process, quotas)
        session.pending_host = host
        try:
            await host.make()
        except Exception as error:
            if session.closed:
                raise no_session(self._limits.idle) from None
            if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
                logger.warning("cannot start a worker for session %d: %s", session.number, error)
                raise RefusedError(
                    429, "full", "the server cannot start more processes: try again later"
                ) from None
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

    def _process_for(self, session: Session, quotas: Sequence[Quota]) -> SessionProcess:
        """Return a new worker process, or an existing one of the session if a quota is reached."""
        for process in session.processes:
            process.count()
        try:
            for quota in quotas:
                quota.check(processes=PROCESSES_PER_WORKER)
        except RefusedError:
            shared = [process for process in session.processes if process.alive]
            if not shared:
                raise
            return min(shared, key=lambda process: process.environments)
        return SessionProcess(self._limits.request, quotas, self._step_slots, self._slow_step_timer)

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
            pids = {pid: each for one in self for each in one.processes if (pid := each.pid)}
            if not pids:
                continue
            for pid, usage in (await asyncio.to_thread(usage_of, list(pids))).items():
                pids[pid].usage = usage
            for session in self:
                self._check_usage(session)

    def _check_usage(self, session: Session) -> None:
        account = session.account
        for quota, sessions in (
            (session.quota, [session]),
            (account.quota, [each for each in self if each.account is account]),
        ):
            usages = [process.usage for each in sessions for process in each.processes]
            cpu = quota.cpu + sum(usage.cpu for usage in usages)
            memory = sum(usage.memory for usage in usages)
            for used, limit, unit in (
                (cpu, quota.max_cpu, "seconds of CPU"),
                (memory, quota.max_memory, "bytes of memory"),
            ):
                if limit is not None and used > limit and not session.ended_reason:
                    text = (
                        f"this server allows {limit:g} {unit} {quota.scope}, but {used:g} were used"
                    )
                    logger.warning("session %d ended: %s", session.number, text)
                    session.terminate(RefusedError(429, "usage", text))

    async def expire(self) -> None:
        """Close idle sessions; never returns."""
        while True:
            await asyncio.sleep(min(1.0, self._limits.idle / 4))
            now = monotonic()
            for session in self:
                since = session.idle_since
                if since is not None and now - since > self._limits.idle:
                    closing = asyncio.create_task(
                        self.close(session, f"idle for {self._limits.idle:g} s")
                    )
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)

    async def close_all(self) -> None:
        await asyncio.gather(
            *(self.close(session, "the server is shutting down") for session in self),
            *self._closing,
        )

    def _count(self) -> None:
        self._metrics.sessions = len(self._sessions)
        self._metrics.environments = sum(each.environments for each in self)
