"""A Ray actor around groups of environments, seen from the caller: its start, requests and end.

A request to several of its groups is one call with one reply. So what groups are asked is kept
until somebody says that this is all, or wants an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.protocol import RequestType
from xuance_envs.engine.process.spawning import deferred_interrupt
from xuance_envs.engine.ray.actor import ActorPlan
from xuance_envs.engine.ray.authenticated_connection import (
    AuthenticationError,
    connect_authenticated,
)
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions, RayCluster
from xuance_envs.engine.ray.messages import GroupRequest, pack_requests, unpack_replies
from xuance_envs.engine.ray.step_codec import ActorCodec
from xuance_envs.engine.ray.transports import (
    POLL_INTERVAL,
    Call,
    ConnectionLostError,
    RayTransport,
    SocketTransport,
)

__all__ = ["ActorClient", "ActorSettings", "kill_actor", "start_actor"]

logger = logging.getLogger("xuance_envs")

CONNECT_TIMEOUT = 5.0
"""Seconds it may take to connect to an actor that has started."""

_MAX_LINES = 20
"""Of what Ray says about a lost actor, so many are shown."""


@dataclass(frozen=True)
class ActorSettings:
    """How the actors of one vector environment are started."""

    cluster: RayCluster
    options: ActorOptions
    count: int
    timeout: float | None
    start_timeout: float | None

    def describe_shortage(self) -> str:
        """Why an actor may not have been started, in words."""
        return (
            "Ray has not started its actor, as it does where the cluster has no room for it. "
            f"All of them take {self.cluster.describe_shortage(self.options, self.count)}. Have fewer "
            "workers with more environments each (in_series), or let them take less "
            "(num_cpus_per_worker)"
        )


def start_actor(settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> Any:
    """Starts an actor, and does not wait for it; returns its handle."""
    return settings.cluster.start_actor(options, plan)


def kill_actor(cluster: RayCluster, handle: Any) -> None:
    """Ends an actor, whatever it is doing."""
    cluster.kill(handle)


class ActorClient:
    """An actor, which is started, and not waited for.

    It is asked by Ray's calls until it is connected to.
    """

    def __init__(self, settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> None:
        self.plan = plan
        self.lost: str | None = None
        self.connection: SocketTransport | None = None
        self._may_connect = False
        self._cluster = settings.cluster
        self._handle = start_actor(settings, options, plan)
        self._place: tuple[int, str] | None = None
        self._codec: ActorCodec
        self._ray_transport = RayTransport(self._cluster, self.on_reply, self._handle.answer)
        self._queued: dict[int, tuple[GroupRequest, Sequence[Any]]] = {}
        self._calls: dict[int, Call] = {}
        self._unsent: list[Call] = []
        # Answered before anything else is, and so it tells whether the actor has started.
        self._location_ref = self._cluster.call(self._handle.location)
        self._listen_ref: Any = None

    def attach(self, arrays: StepArrays, may_connect: bool) -> None:
        """Takes note of the caller's arrays that its groups' results are to be in."""
        self._codec = ActorCodec(arrays, self.plan.split)
        self._may_connect = may_connect

    def allocate(self, spaces: bytes) -> Any:
        """Has it lay out its own arrays."""
        return self._cluster.call(self._handle.attach, spaces)

    # -- its connection ---------------------------------------------------------------

    def listen(self) -> None:
        """Has it listen, to be connected to."""
        self._listen_ref = self._cluster.call(self._handle.listen)

    def connect(self, deadline: float) -> str | None:
        """Connects to it; from then on it is asked by the connection."""
        listen_ref, self._listen_ref = self._listen_ref, None
        served: list[Any] = []

        def serve(seconds: float = CONNECT_TIMEOUT) -> None:
            served.append(self._cluster.call(self._handle.serve, seconds))

        # One that is interrupted would leave the actor waiting for it.
        with deferred_interrupt():
            try:
                *address, key = self._cluster.get(listen_ref, max(deadline - monotonic(), 0.0))
                connection = connect_authenticated((address[0], address[1]), key, deadline, serve)
            except (ActorLostError, OSError, AuthenticationError) as error:
                self._may_connect = False
                if not served:
                    serve(0.0)  # which has it listen no longer
                return f"{type(error).__name__}: {error}"
            self.connection = SocketTransport(self._cluster, self.on_reply, connection, *served)
        return None

    def _connect_again(self) -> None:
        """Connects to it where nothing that it has been asked before keeps it from answering."""
        busy = not self.plan.in_processes and self._outstanding()
        if busy or self.lost is not None or self.place is None:
            return
        self.listen()
        why = self.connect(monotonic() + CONNECT_TIMEOUT)
        if why is not None:
            logger.warning("%s; it is asked by Ray's calls", self.connection_failure(why))

    def connection_failure(self, why: str) -> str:
        """That it is not connected to, in words."""
        return f"there is no connection to the actor on {self.where}: {why}"

    def disconnect(self) -> None:
        """Ends the connection; what is not answered goes by Ray's calls, and is not done again."""
        if self.connection is not None:
            self.connection.close()
            unsent = self._outstanding()
            self.connection, self._unsent = None, unsent

    def _outstanding(self) -> list[Call]:
        return [call for call in dict.fromkeys(self._calls.values()) if call.answers is None]

    # -- requests ---------------------------------------------------------------------

    def submit(self, group_request: GroupRequest, lent: Sequence[Any] = ()) -> None:
        """Has a group asked, together with others, when :meth:`flush` is called."""
        self._queued[group_request.group] = group_request, lent

    def flush(self) -> None:
        """Sends what there is to ask; after an interrupt it goes on with that."""
        if self._queued:
            self._make_call()
        while self._unsent:
            if not (self.connection or self._ray_transport).send(self._unsent[0]):
                return
            self._unsent = self._unsent[1:]

    def _make_call(self) -> None:
        lent = list(dict.fromkeys(ref for _, refs in self._queued.values() for ref in refs))
        if lent:
            self.disconnect()  # Ray brings objects with its calls
        elif self._may_connect and self.connection is None:
            self._connect_again()
        requests = [
            group_request._replace(lent=tuple(map(lent.index, refs))) if refs else group_request
            for group_request, refs in self._queued.values()
        ]
        stepping = [
            group_request.group
            for group_request in requests
            if group_request.code == RequestType.STEP
        ]
        request = pack_requests(requests, self._codec.actions(stepping) if stepping else b"")
        call = Call([group_request.group for group_request in requests], request, lent)
        calls = {**self._calls, **dict.fromkeys(call.groups, call)}
        # No call in between, so that an interrupt finds either all of it or nothing.
        self._queued, self._calls, self._unsent = {}, calls, [*self._unsent, call]

    def call_of(self, group: int) -> Call | None:
        """The last call in which a group was asked; None while one is to be made."""
        return None if group in self._queued else self._calls.get(group)

    def connection_of(self, call: Call) -> SocketTransport | None:
        """By which the reply to a call comes; None where Ray tells of it."""
        connection = None if call.via_ray else self.connection
        return None if connection is None or connection.status_ref is not None else connection

    def ref_of(self, call: Call) -> Any:
        """What Ray tells by that there is a reply to a call, or that there will be none."""
        return call.ref if call.via_ray or self.connection is None else self.connection.status_ref

    def receive(self, call: Call, seconds: float) -> None:
        """Waits until the reply to a call has been taken in."""
        end = monotonic() + seconds
        if self.connection is not None and not call.via_ray:
            try:
                self.connection.receive(call, seconds)
                return
            except ConnectionLostError as error:
                logger.warning(
                    "%s; it is asked by Ray's calls", self.connection_failure(str(error))
                )
                self._may_connect = False
                self.disconnect()
                self.flush()
        self._ray_transport.receive(call, max(end - monotonic(), 0.0))

    def has_progress(self, call: Call) -> bool:
        """Whether a reply is under way, of which more has come since this was last asked."""
        transport = self._ray_transport if call.via_ray else self.connection
        return transport is not None and transport.has_progress(call)

    def on_reply(self, call: Call, reply: bytes | memoryview) -> None:
        """Takes the reply to a call: brings what is for the arrays there."""
        if call.answers is not None:
            return
        answers, start = unpack_replies(reply, len(call.groups))
        by_group = dict(zip(call.groups, answers, strict=True))
        extents = {group: answer.extents for group, answer in by_group.items() if answer.is_outcome}
        if extents:
            self._codec.load_results(reply, start, extents)
        # No group of it has been asked anything else before there is this.
        call.answers = by_group

    # -- where it is, and its end -----------------------------------------------------

    @property
    def place(self) -> tuple[int, str] | None:
        """Its process id and the id of its node; None as long as it has not been started."""
        if self._place is None and self._cluster.wait([self._location_ref], 1, 0.0):
            with suppress(ActorLostError, TimeoutError):
                self._place = self._cluster.get(self._location_ref, POLL_INTERVAL)
        return self._place

    @property
    def pid(self) -> int | None:
        """Its process id; None as long as it has not been started."""
        return None if self.place is None else self.place[0]

    @property
    def where(self) -> str:
        """Its node, in words."""
        return "no node yet" if self.place is None else self._cluster.name_node(self.place[1])

    def mark_lost(self, told: str) -> None:
        """Takes the actor for lost; it may still be there, and answer, and must not."""
        lines = told.strip().splitlines()
        self.lost = "\n".join(lines[:_MAX_LINES])
        self.kill()

    def ask_to_close(self) -> Any:
        """Has it close its environments, once it is done with what it is doing."""
        if self.lost is not None:
            return None
        self.disconnect()
        return self._cluster.call(self._handle.close)

    def kill(self) -> None:
        """Ends the actor, whatever it is doing."""
        if self.connection is not None:
            self.connection.close()
        kill_actor(self._cluster, self._handle)
