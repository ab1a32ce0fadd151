"""Exchange of requests and replies with actors: the only place that sends and waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.ray.actor_client import ActorCall, ActorClient
from xuance_envs.engine.ray.cluster import RayCluster
from xuance_envs.engine.system.current import system

POLL_INTERVAL = 1.0  # seconds between checks of actors and of silent connections
MIXED_POLL_INTERVAL = 0.01  # seconds between checks of Ray calls while also reading connections


class Exchange(Poller):
    """Exchange of requests and replies with actors; interrupted methods can be called again."""

    def __init__(self, cluster: RayCluster, workers: Sequence[Any]) -> None:
        self.actors: list[ActorClient] = []
        self._workers = workers
        self._cluster = cluster
        self._all_sent = True
        self._reading = False  # True after an interrupt, which may leave replies unprocessed
        self._next_check = 0.0

    def submit(self, actor: ActorClient, group: int, packed: PackedCommand) -> None:
        """Queue a group's command until :meth:`send` combines it with other groups' commands."""
        actor.queued[group] = packed
        self._all_sent = False

    def send(self) -> None:
        """Send the queued commands, and repeat those that a broken connection has lost."""
        if not self._all_sent:
            self._all_sent = all([actor.send() for actor in self.actors])

    @override
    def poll(self, busy: Collection[int]) -> set[int]:
        return self._answered(busy, 0.0)

    @override
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        found = self.poll(busy)  # reports all replies, but a wait reports only one
        while not found and (until is None or monotonic() < until):
            left = POLL_INTERVAL if until is None else min(until - monotonic(), POLL_INTERVAL)
            found = self._answered(busy, max(left, 0.0))
        return found

    def _answered(self, busy: Collection[int], seconds: float) -> set[int]:
        workers = {group: self._workers[group] for group in busy}
        if any(each.actor.has_answered(each.group) for each in workers.values()):
            seconds = 0.0
        self.receive(workers.values(), seconds)
        return {k for k, each in workers.items() if each.actor.has_answered(each.group)}

    def receive(self, workers: Iterable[Any], seconds: float) -> None:
        """Wait up to ``seconds`` for a reply of one of these workers, and process replies."""
        self.send()
        if self._reading:
            for each in self.actors:
                each.read()
            self._reading = False
        connections: dict[int, ActorClient] = {}  # by file descriptor
        calls: dict[Any, tuple[ActorClient, ActorCall]] = {}  # by Ray's reference
        for worker in workers:
            actor: ActorClient = worker.actor
            call = actor.call_of(worker.group)
            if call is None or call.replies is not None or actor.lost is not None:
                continue
            if call.via_ray:
                calls[call.ref] = actor, call
            elif (connection := actor.connection) is not None:
                connections[connection.fd] = actor
        if connections:
            self._read(connections, min(seconds, MIXED_POLL_INTERVAL) if calls else seconds)
            seconds = 0.0
        if calls:
            for ref in self._cluster.wait([*calls], 1 if seconds else len(calls), seconds):
                actor, call = calls[ref]
                actor.fetch(call)

    def _read(self, connections: dict[int, ActorClient], seconds: float) -> None:
        poll = system.poll()
        for fd in connections:
            poll.register(fd, system.POLLIN)
        events = poll.poll(seconds * 1e3)
        self._reading = True
        for fd, _ in events:
            if not connections[fd].read():
                self._all_sent = False
        self._reading = False
        if monotonic() >= self._next_check:
            self._next_check = monotonic() + POLL_INTERVAL
            self._check_served(connections.values())

    def _check_served(self, actors: Iterable[ActorClient]) -> None:
        """End connections that their actors no longer serve."""
        connections = [actor.connection for actor in actors]
        by_ref = {each.serve_ref: each for each in connections if each is not None}
        for ref in self._cluster.wait([*by_ref], len(by_ref), 0.0):
            by_ref[ref].mark_broken("the actor no longer serves the connection")
            self._all_sent = False
