"""Exchange of requests and replies with actors: the only place that sends and waits."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.ray.actor_client import ActorCall, ActorClient
from xuance_envs.engine.ray.cluster import RayCluster
from xuance_envs.engine.ray.connection import DirectConnection
from xuance_envs.engine.system.current import system

POLL_INTERVAL = 1.0
"""Seconds between checks of actors and of connections that nothing has arrived from."""

MIXED_POLL_INTERVAL = 0.01
"""Seconds between polls of Ray if only some actors are connected directly."""

Connections = dict[int, tuple[ActorClient, DirectConnection]]
"""Connections and their actors, by file descriptor."""


class Exchange:
    """Sends requests to the actors of a vec env and receives their replies.

    Both :meth:`send` and :meth:`receive` may be interrupted, and resume when called again.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self.actors: list[ActorClient] = []
        self._cluster = cluster
        self._all_sent = True
        self._reading = False  # True after an interrupt, which may leave replies unprocessed
        self._next_check = 0.0

    def submit(self, actor: ActorClient, group: int, packed: PackedCommand) -> None:
        """Queue a group's command until :meth:`send` combines it with those of other groups."""
        actor.submit(group, packed)
        self._all_sent = False

    def send(self) -> None:
        """Send the queued commands, and repeat those that a broken connection has lost."""
        if not self._all_sent:
            self._all_sent = all([actor.send() for actor in self.actors])

    def receive(self, groups: Iterable[tuple[ActorClient, int]], seconds: float) -> None:
        """Wait until a reply to one of these actors' groups may have arrived, and process it."""
        self.send()
        if self._reading:
            for actor in self.actors:
                actor.process_replies()
            self._reading = False
        connections: Connections = {}
        calls: dict[Any, tuple[ActorClient, ActorCall]] = {}  # by Ray's reference
        for actor, group in groups:
            call = actor.pending_call(group)
            if call is None or actor.lost is not None:
                continue
            if call.via_ray:
                calls[call.ref] = actor, call
            elif (connection := actor.connection) is not None:
                connections[connection.fd] = actor, connection
        if connections:
            self._read(connections, min(seconds, MIXED_POLL_INTERVAL) if calls else seconds)
            seconds = 0.0
        if calls:
            for ref in self._cluster.wait([*calls], 1 if seconds else len(calls), seconds):
                actor, call = calls[ref]
                actor.fetch(call)

    def _read(self, connections: Connections, seconds: float) -> None:
        poll = system.poll()
        for fd in connections:
            poll.register(fd, system.POLLIN)
        events = poll.poll(seconds * 1e3)
        self._reading = True
        for fd, _ in events:
            actor, connection = connections[fd]
            connection.read()
            actor.process_replies()
            if connection.broken is not None:
                self._all_sent = False
        self._reading = False
        if monotonic() >= self._next_check:
            self._next_check = monotonic() + POLL_INTERVAL
            self._check_served([connection for _, connection in connections.values()])

    def _check_served(self, connections: Iterable[DirectConnection]) -> None:
        """End connections that their actors no longer serve."""
        by_ref = {connection.serve_ref: connection for connection in connections}
        for ref in self._cluster.wait([*by_ref], len(by_ref), 0.0):
            by_ref[ref].mark_broken("the actor stopped serving it")
            self._all_sent = False
