"""One session: its owner, environments, request order, and replies to repeated requests."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic

from xuance_envs.errors import counted
from xuance_envs.remote.server.hosting.env_host import EnvHost
from xuance_envs.remote.server.hosting.session_process import SessionProcess
from xuance_envs.remote.server.http.requests import LARGE_REPLY, LargeReplies, Reply
from xuance_envs.remote.server.limits import Account, Quota, throttle, too_many_requests
from xuance_envs.remote.wire.failures import RefusedError, no_session, no_state


class Session:
    def __init__(
        self,
        account: Account,
        server_quota: Quota,
        number: int,
        share_frames: bool,
        replies: LargeReplies,
        nonce: str | None,
    ) -> None:
        limits = account.limits
        self.id = secrets.token_urlsafe(18)
        self.account = account
        self.nonce = nonce
        self.quota = Quota("per session", account.quota, server_quota)
        self.quota.limit(limits, "_per_session")
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
    def idle_since(self) -> float | None:
        """Time of the last request; None while a request runs."""
        return None if self._waiting else self.last_used

    async def run_once(
        self, sequence: int | None, digest: bytes, act: Callable[[], Awaitable[Reply]]
    ) -> Reply:
        """Execute a request in turn; answer a repeated request with its first reply."""
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
        if len(reply.body) < LARGE_REPLY:
            self._reply = reply
        elif not self.closed:
            self._reply = None
            self._replies.store(self.id, reply)

    def _repeat_reply(self, digest: bytes) -> Reply:
        if digest != self._digest:
            text = "a different request already used this sequence number"
            raise RefusedError(409, "sequence", text)
        reply = self._reply or self._replies.get(self.id)
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
            text = f"expected episodes created by the same request, got {1 + len(others)} requests"
            raise RefusedError(422, "episodes", text)
        return host, [place for _, place in found]

    def state_holders(self, numbers: Sequence[int]) -> dict[EnvHost, list[int]]:
        """Group states by a host in the process that keeps them; raise if one is missing."""
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
