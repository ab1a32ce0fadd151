"""Main process's client of a Ray actor: starts the actor, sends it requests, and ends it.

Requests to several groups are queued until a flush, and then sent in one call with one reply.
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
    ActorCall,
    RayTransport,
    SocketTransport,
)

logger = logging.getLogger("xuance_envs")

CONNECT_TIMEOUT = 5.0

_MAX_REPORT_LINES = 20
"""Maximum number of lines to show from Ray's report on a failed actor."""


@dataclass(frozen=True)
class ActorSettings:
    """Start settings of a vec env's actors."""

    cluster: RayCluster
    options: ActorOptions
    count: int
    timeout: float | None
    start_timeout: float | None

    def describe_shortage(self) -> str:
        """Explain why Ray may not have started an actor."""
        return (
            "Ray has not started the actor, probably because the cluster has too few free "
            "resources. All actors together need "
            f"{self.cluster.describe_shortage(self.options, self.count)}. Use fewer workers with "
            "more environments each (in_series), or fewer CPUs per worker (num_cpus_per_worker)"
        )


def start_actor(settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> Any:
    return settings.cluster.start_actor(options, plan)


def kill_actor(cluster: RayCluster, handle: Any) -> None:
    cluster.kill(handle)


class ActorClient:
    """Client of one actor; the constructor does not wait until the actor has started.

    Ray calls carry the requests until a direct connection exists.
    """

    def __init__(self, settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> None:
        self.plan = plan
        self.lost: str | None = None
        self.connection: SocketTransport | None = None
        # Ended connections that the actor may still serve: by key, Ray's reference and the reason.
        self._ended: dict[bytes, tuple[Any, str | None]] = {}
        self._may_connect = False
        self._cluster = settings.cluster
        self._handle = start_actor(settings, options, plan)
        self._place: tuple[int, str] | None = None
        self._codec: ActorCodec
        self._ray_transport = RayTransport(self._cluster, self.on_reply, self._handle.answer)
        self._queued: dict[int, tuple[GroupRequest, Sequence[Any]]] = {}
        self._calls: dict[int, ActorCall] = {}
        self._unsent: list[ActorCall] = []
        self._number = 0
        # The actor's first call: its reply shows that the actor has started.
        self._location_ref = self._cluster.call(self._handle.location)
        self._listen_ref: Any = None

    def attach(self, arrays: StepArrays, may_connect: bool) -> None:
        """Set the arrays of the main process into which results are copied."""
        self._codec = ActorCodec(arrays, self.plan.split)
        self._may_connect = may_connect

    def allocate(self, spaces: bytes) -> Any:
        """Start allocating the actor's own arrays; return Ray's reference."""
        return self._cluster.call(self._handle.attach, spaces)

    # -- connection -------------------------------------------------------------------

    def listen(self) -> None:
        """Tell the actor to listen for a connection."""
        self._listen_ref = self._cluster.call(self._handle.listen)

    def connect(self, deadline: float) -> str | None:
        """Connect to the listening actor; return the reason of a failure, or None."""
        listen_ref, self._listen_ref = self._listen_ref, None
        served: list[Any] = []
        key = b""

        def serve(seconds: float = CONNECT_TIMEOUT) -> None:
            served.append(self._cluster.call(self._handle.serve, seconds))

        # An interrupt would leave the actor waiting for the connection.
        with deferred_interrupt():
            try:
                *address, key = self._cluster.get(listen_ref, max(deadline - monotonic(), 0.0))
                connection = connect_authenticated((address[0], address[1]), key, deadline, serve)
            except (ActorLostError, OSError, AuthenticationError) as error:
                self._may_connect = False
                if served:
                    self._end(key, *served)
                else:
                    serve(0.0)  # stops listening
                return f"{type(error).__name__}: {error}"
            transport = SocketTransport(self._cluster, self.on_reply, connection, key, *served)
            self.connection = transport
        return None

    def _connect_again(self) -> None:
        """Open a new connection, unless the actor is busy with an earlier request."""
        busy = not self.plan.in_processes and self._outstanding()
        if busy or self.lost is not None or self.place is None:
            return
        self.listen()
        why = self.connect(monotonic() + CONNECT_TIMEOUT)
        if why is not None:
            logger.warning("%s; using Ray calls instead", self.connection_failure(why))

    def connection_failure(self, why: str) -> str:
        return f"no connection to the actor on {self.where}: {why}"

    def disconnect(self) -> None:
        """Close the connection, and queue its unanswered requests to be repeated as Ray calls."""
        if self.connection is not None:
            connection = self.connection
            self._end(connection.key, connection.serve_ref, connection.broken)
            connection.close()
            unsent = self._outstanding()
            self.connection, self._unsent = None, unsent

    def _end(self, key: bytes, serve_ref: Any, why: str | None = None) -> None:
        self._ended = {**self._ended, key: (serve_ref, why)}
        self._cluster.end_connection(key)

    def _confirm_ends(self) -> None:
        """Discard the ended connections that the actor no longer serves."""
        for key, (serve_ref, why) in [*self._ended.items()]:
            if self._cluster.wait([serve_ref], 1, 0.0):
                self._cluster.withdraw_end(key)
                self._ended.pop(key, None)
                if why is not None:
                    logger.warning("%s; using Ray calls instead", self.connection_failure(why))
                self._cluster.get(serve_ref, POLL_INTERVAL)  # raises if a bug ended it

    def _outstanding(self) -> list[ActorCall]:
        return [call for call in dict.fromkeys(self._calls.values()) if call.answers is None]

    # -- requests ---------------------------------------------------------------------

    def submit(self, group_request: GroupRequest, buffers: Sequence[Any] = ()) -> None:
        """Queue a group's request until the next :meth:`flush`."""
        self._queued[group_request.group] = group_request, buffers

    def flush(self) -> None:
        """Send all queued requests; after an interrupt, a second call sends the rest."""
        if self.lost is None and self.connection is not None and self.connection.broken is not None:
            self._may_connect = False
            self.disconnect()
        if self._queued:
            self._make_call()
        while self._unsent:
            if not (self.connection or self._ray_transport).send(self._unsent[0]):
                return
            self._unsent = self._unsent[1:]

    def _make_call(self) -> None:
        buffers = list(dict.fromkeys(ref for _, refs in self._queued.values() for ref in refs))
        if buffers:
            self.disconnect()  # only Ray calls can carry object references
        elif self._may_connect and self.connection is None:
            self._connect_again()
        requests = [
            group_request._replace(buffers=tuple(map(buffers.index, refs)))
            if refs
            else group_request
            for group_request, refs in self._queued.values()
        ]
        stepping = [
            group_request.group
            for group_request in requests
            if group_request.code == RequestType.STEP
        ]
        request = pack_requests(requests, self._codec.actions(stepping) if stepping else b"")
        number, groups = self._number + 1, [group_request.group for group_request in requests]
        call = ActorCall(number, groups, request, buffers)
        calls = {**self._calls, **dict.fromkeys(groups, call)}
        unsent = [*self._unsent, call]
        # One statement without calls, so an interrupt cannot come halfway.
        self._number, self._queued, self._calls, self._unsent = number, {}, calls, unsent

    def call_of(self, group: int) -> ActorCall | None:
        """Return the last call to a group, or None if its request is still queued."""
        return None if group in self._queued else self._calls.get(group)

    def connection_of(self, call: ActorCall) -> SocketTransport | None:
        """Return the connection that delivers a call's reply, or None if Ray delivers it."""
        return None if call.via_ray else self.connection

    def receive(self, call: ActorCall, seconds: float) -> None:
        """Wait until a call's reply has been processed."""
        end = monotonic() + seconds
        if self.connection is not None and not call.via_ray:
            self.connection.receive(call, seconds)
            if call.answers is not None:
                return
            self.flush()
        self._ray_transport.receive(call, max(end - monotonic(), 0.0))
        self._confirm_ends()

    def has_progress(self, call: ActorCall) -> bool:
        """Return whether more of a reply has arrived since the last call."""
        transport = self._ray_transport if call.via_ray else self.connection
        return transport is not None and transport.has_progress(call)

    def on_reply(self, call: ActorCall, reply: bytes | memoryview) -> None:
        """Unpack a call's reply and copy its results into the arrays."""
        if call.answers is not None:
            return
        answers, start = unpack_replies(reply, len(call.groups))
        by_group = dict(zip(call.groups, answers, strict=True))
        extents = {group: answer.extents for group, answer in by_group.items() if answer.is_outcome}
        if extents:
            self._codec.load_results(reply, start, extents)
        # Set last, because the groups of the call may then be sent their next requests.
        call.answers = by_group

    # -- location and shutdown --------------------------------------------------------

    @property
    def place(self) -> tuple[int, str] | None:
        if self._place is None and self._cluster.wait([self._location_ref], 1, 0.0):
            with suppress(ActorLostError, TimeoutError):
                self._place = self._cluster.get(self._location_ref, POLL_INTERVAL)
        return self._place

    @property
    def pid(self) -> int | None:
        return None if self.place is None else self.place[0]

    @property
    def where(self) -> str:
        return (
            "an unknown node (not started)"
            if self.place is None
            else self._cluster.name_node(self.place[1])
        )

    def mark_lost(self, report: str) -> None:
        """Record that the actor has failed, and kill it in case it is still running."""
        lines = report.strip().splitlines()
        self.lost = "\n".join(lines[:_MAX_REPORT_LINES])
        self.kill()

    def ask_to_close(self) -> Any:
        """Start closing the environments after the current request; return Ray's reference."""
        if self.lost is not None:
            return None
        self.disconnect()
        return self._cluster.call(self._handle.close)

    def kill(self) -> None:
        if self.connection is not None:
            self.connection.close()
        kill_actor(self._cluster, self._handle)
        for key in self._ended:
            self._cluster.withdraw_end(key)
