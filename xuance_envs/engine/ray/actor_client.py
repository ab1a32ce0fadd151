"""Main process's client of a Ray actor: starts the actor, sends it requests, and ends it.

Commands for several groups are queued, and then sent in one call with one reply.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.ray.authenticated_connection import (
    AuthenticationError,
    connect_authenticated,
)
from xuance_envs.engine.ray.cluster import ActorLostError, ActorOptions, RayCluster
from xuance_envs.engine.ray.connection import DirectConnection
from xuance_envs.engine.ray.hosting import ActorPlan
from xuance_envs.engine.ray.messages import (
    ActorCodec,
    GroupReply,
    pack_requests,
    stepping_groups,
    unpack_replies,
)
from xuance_envs.engine.system.interrupts import deferred_interrupt

logger = logging.getLogger("xuance_envs")

CONNECT_TIMEOUT = 5.0

_FETCH_TIMEOUT = 1.0  # seconds to wait for a result that Ray has reported as ready
_MAX_REPORT_LINES = 20  # maximum number of lines to show from Ray's report on a failed actor


@dataclass(eq=False)
class ActorCall:
    """Request to one or more groups of an actor, and its replies."""

    number: int
    groups: Sequence[int]
    request: bytes
    buffers: Sequence[Any]
    replies: dict[int, GroupReply] | None = None
    via_ray: bool = False
    ref: Any = None


class ActorClient:
    """Client of one actor, which uses Ray calls until a direct connection exists."""

    def __init__(self, cluster: RayCluster, options: ActorOptions, plan: ActorPlan) -> None:
        self.plan = plan
        self.lost: str | None = None
        self.connection: DirectConnection | None = None
        # Ended connections that may still be served, by key: Ray's reference, and why they ended.
        self._ended: dict[bytes, tuple[Any, str | None]] = {}
        self._may_connect = False
        self._cluster = cluster
        self._handle = self._cluster.start_actor(options, plan)
        self._place: tuple[int, str] | None = None
        self._codec: ActorCodec
        # By group, the command that is not part of a call yet, and the last call.
        self.queued: dict[int, PackedCommand] = {}
        self._calls: dict[int, ActorCall] = {}
        self._unsent: list[ActorCall] = []
        self._number = 0
        # The actor's first call: its reply shows that the actor has started.
        self._location_ref = self._cluster.call(self._handle.location)

    def attach(self, arrays: StepArrays, may_connect: bool) -> None:
        """Set the arrays of the main process into which results are copied."""
        self._codec = ActorCodec(arrays, self.plan.split)
        self._may_connect = may_connect

    def allocate(self, spaces: bytes) -> Any:
        """Start allocating the actor's own arrays; return Ray's reference."""
        return self._cluster.call(self._handle.attach, spaces)

    # -- connection -------------------------------------------------------------------

    def listen(self) -> Any:
        return self._cluster.call(self._handle.listen)

    def connect(self, listen_ref: Any, deadline: float) -> str | None:
        """Connect to the listening actor; return the reason of a failure, or None."""
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
            self.connection = DirectConnection(connection, key, *served)
        return None

    def _connect_again(self) -> None:
        """Open a new connection, unless the actor is busy with an earlier request."""
        busy = not self.plan.in_processes and self._outstanding()
        if busy or self.lost is not None or self.place is None:
            return
        why = self.connect(self.listen(), monotonic() + CONNECT_TIMEOUT)
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
                self._cluster.get(serve_ref, _FETCH_TIMEOUT)  # raises if a bug ended it

    def _outstanding(self) -> list[ActorCall]:
        return [call for call in dict.fromkeys(self._calls.values()) if call.replies is None]

    # -- requests and replies ---------------------------------------------------------

    def send(self) -> bool:
        """Send all queued commands; return False if a further call must send the rest."""
        if self.lost is None and self.connection is not None and self.connection.broken is not None:
            self._may_connect = False
            self.disconnect()
        if self.queued:
            self._make_call()
        while self._unsent:
            call = self._unsent[0]
            if self.connection is not None:
                if not self.connection.send(call.number, call.request):
                    return False
            elif not call.via_ray:  # after an interrupt, the actor recognizes a repeated number
                arguments = call.number, call.request, *call.buffers
                call.ref, call.via_ray = self._cluster.call(self._handle.answer, *arguments), True
            self._unsent = self._unsent[1:]
        return self.connection is None or self.connection.broken is None

    def _make_call(self) -> None:
        commands = self.queued
        buffers = list(dict.fromkeys(ref for packed in commands.values() for ref in packed.buffers))
        if buffers:
            self.disconnect()  # only Ray calls can carry object references
        elif self._may_connect and self.connection is None:
            self._connect_again()
        stepping = stepping_groups(commands)
        actions = self._codec.actions(stepping) if stepping else b""
        request = pack_requests(commands, buffers, actions)
        number, call = self._number + 1, ActorCall(self._number + 1, [*commands], request, buffers)
        calls = {**self._calls, **dict.fromkeys(commands, call)}
        unsent = [*self._unsent, call]
        # One statement without calls, so an interrupt cannot come halfway.
        self._number, self.queued, self._calls, self._unsent = number, {}, calls, unsent

    def call_of(self, group: int) -> ActorCall | None:
        """Return the call with a group's last command, or None if the command is queued."""
        return None if group in self.queued else self._calls.get(group)

    def reply(self, group: int) -> GroupReply | None:
        """Return the reply to a group's last command, or None if it has not arrived."""
        call = self.call_of(group)
        return None if call is None or call.replies is None else call.replies[group]

    def has_answered(self, group: int) -> bool:
        """Return True if a group's reply has arrived, or can no longer arrive."""
        return self.lost is not None or self.reply(group) is not None

    def read(self) -> bool:
        """Process received replies; return False if the connection no longer exists."""
        connection = self.connection
        if connection is None:
            return False
        connection.read()
        for number, reply in connection.replies():
            for call in self._calls.values():
                if call.number == number:
                    self._process(call, reply)
                    break
        return connection.broken is None

    def fetch(self, call: ActorCall) -> None:
        """Process a call's reply, which Ray has delivered."""
        try:
            self._process(call, self._cluster.get(call.ref, _FETCH_TIMEOUT))
        except TimeoutError:
            return
        except ActorLostError as error:
            self.mark_lost(str(error))
            return
        self._confirm_ends()

    def _process(self, call: ActorCall, reply: bytes | memoryview) -> None:
        """Unpack a call's reply and copy its results into the arrays."""
        if call.replies is not None:
            return
        unpacked, start = unpack_replies(reply, len(call.groups))
        replies = dict(zip(call.groups, unpacked, strict=True))
        extents = {group: each.extents for group, each in replies.items() if each.is_outcome}
        if extents:
            self._codec.load_results(reply, start, extents)
        # Set last, because the groups of the call may then be sent their next commands.
        call.replies = replies

    # -- location and shutdown --------------------------------------------------------

    @property
    def place(self) -> tuple[int, str] | None:
        if self._place is None and self._cluster.wait([self._location_ref], 1, 0.0):
            with suppress(ActorLostError, TimeoutError):
                self._place = self._cluster.get(self._location_ref, _FETCH_TIMEOUT)
        return self._place

    @property
    def pid(self) -> int | None:
        return None if self.place is None else self.place[0]

    @property
    def where(self) -> str:
        if self.place is None:
            return "an unknown node (not started)"
        return self._cluster.name_node(self.place[1])

    def mark_lost(self, report: str) -> None:
        """Record that the actor has failed, and kill it in case it is still running."""
        self.lost = "\n".join(report.strip().splitlines()[:_MAX_REPORT_LINES])
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
        self._cluster.kill(self._handle)
        for key in self._ended:
            self._cluster.withdraw_end(key)
