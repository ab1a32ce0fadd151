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
from xuance_envs.engine.group.requests import Request
from xuance_envs.engine.process.start import deferred_interrupt
from xuance_envs.engine.ray.actor import ActorPlan
from xuance_envs.engine.ray.cluster import ActorOptions, LostError, RayCluster
from xuance_envs.engine.ray.connection import StrangerError, connected
from xuance_envs.engine.ray.messages import Ask, pack_asks, unpack_answers
from xuance_envs.engine.ray.ways import LOOK, BrokenError, Call, Connection, RaysCalls
from xuance_envs.engine.ray.wire import ActorWire

__all__ = ["ActorSettings", "WorkerActor", "discard_actor", "start_actor"]

logger = logging.getLogger("xuance_envs")

CONNECTING = 5.0
"""Seconds it may take to connect to an actor that has started."""

_LINES = 20
"""Of what Ray says about a lost actor, so many are shown."""


@dataclass(frozen=True)
class ActorSettings:
    """How the actors of one vector environment are started.

    Attributes:
        cluster: where they are.
        options: what each worker takes, and where.
        count: how many workers there are.
        timeout: seconds each may take to answer; None for ever.
        start_timeout: seconds until each has to have made its environments; None for ever.
    """

    cluster: RayCluster
    options: ActorOptions
    count: int
    timeout: float | None
    start_timeout: float | None

    def shortage(self) -> str:
        """Why an actor may not have been started, in words."""
        return (
            "Ray has not started its actor, as it does where the cluster has no room for it. "
            f"All of them take {self.cluster.shortage(self.options, self.count)}. Have fewer "
            "workers with more environments each (in_series), or let them take less "
            "(num_cpus_per_worker)"
        )


def start_actor(settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> Any:
    """Starts an actor, and does not wait for it; returns its handle."""
    return settings.cluster.start_actor(options, plan)


def discard_actor(cluster: RayCluster, handle: Any) -> None:
    """Ends an actor, whatever it is doing."""
    cluster.kill(handle)


class WorkerActor:
    """An actor, which is started, and not waited for.

    It is asked by Ray's calls until it is connected to.

    Args:
        settings: how those of the vector environment are started.
        options: what this one takes, and where.
        plan: what it is for.

    Attributes:
        plan (ActorPlan): as given.
        lost (str | None): what Ray says of its loss, once there is something.
        connection (Connection | None): to it, where there is one.
    """

    def __init__(self, settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> None:
        self.plan = plan
        self.lost: str | None = None
        self.connection: Connection | None = None
        self._connects = False
        self._cluster = settings.cluster
        self._handle = start_actor(settings, options, plan)
        self._place: tuple[int, str] | None = None
        self._wire: ActorWire
        self._rays = RaysCalls(self._cluster, self.take, self._handle.answer)
        self._asks: dict[int, tuple[Ask, Sequence[Any]]] = {}
        self._calls: dict[int, Call] = {}
        self._unsent: list[Call] = []
        # Answered before anything else is, and so it tells whether the actor has started.
        self._whereabouts = self._cluster.call(self._handle.whereabouts)
        self._door: Any = None

    def attach(self, arrays: StepArrays, connects: bool) -> None:
        """Takes note of the caller's arrays that its groups' results are to be in.

        Args:
            arrays: those of all of them.
            connects: whether it may be connected to, once it has laid out its own.
        """
        self._wire = ActorWire(arrays, self.plan.split)
        self._connects = connects

    def allocate(self, spaces: bytes) -> Any:
        """Has it lay out its own arrays.

        Args:
            spaces: an observation and an action space, pickled.

        Returns:
            What to wait for.
        """
        return self._cluster.call(self._handle.attach, spaces)

    # -- its connection ---------------------------------------------------------------

    def listen(self) -> None:
        """Has it listen, to be connected to."""
        self._door = self._cluster.call(self._handle.listen)

    def connect(self, deadline: float) -> str | None:
        """Connects to it; from then on it is asked by the connection.

        Args:
            deadline: when to give up, as :func:`time.monotonic` counts.

        Returns:
            Why that could not be, in words; None where it could.
        """
        door, self._door = self._door, None
        served: list[Any] = []

        def serve(seconds: float = CONNECTING) -> None:
            served.append(self._cluster.call(self._handle.serve, seconds))

        # One that is interrupted would leave the actor waiting for it.
        with deferred_interrupt():
            try:
                *address, key = self._cluster.get(door, max(deadline - monotonic(), 0.0))
                connection = connected((address[0], address[1]), key, deadline, serve)
            except (LostError, OSError, StrangerError) as error:
                self._connects = False
                if not served:
                    serve(0.0)  # which has it listen no longer
                return f"{type(error).__name__}: {error}"
            self.connection = Connection(self._cluster, self.take, connection, *served)
        return None

    def _connect_again(self) -> None:
        """Connects to it where nothing that it has been asked before keeps it from answering."""
        busy = not self.plan.in_processes and self._unanswered()
        if busy or self.lost is not None or self.place is None:
            return
        self.listen()
        why = self.connect(monotonic() + CONNECTING)
        if why is not None:
            logger.warning("%s; it is asked by Ray's calls", self.unconnected(why))

    def unconnected(self, why: str) -> str:
        """That it is not connected to, in words."""
        return f"there is no connection to the actor on {self.where}: {why}"

    def disconnect(self) -> None:
        """Ends the connection; what is not answered goes by Ray's calls, and is not done again."""
        if self.connection is not None:
            self.connection.close()
            unsent = self._unanswered()
            self.connection, self._unsent = None, unsent

    def _unanswered(self) -> list[Call]:
        return [call for call in dict.fromkeys(self._calls.values()) if call.answers is None]

    # -- requests ---------------------------------------------------------------------

    def ask(self, ask: Ask, lent: Sequence[Any] = ()) -> None:
        """Has a group asked, together with others, when :meth:`flush` is called.

        Args:
            ask: what.
            lent: what Ray knows objects by that it is lent.
        """
        self._asks[ask.group] = ask, lent

    def flush(self) -> None:
        """Sends what there is to ask; after an interrupt it goes on with that."""
        if self._asks:
            self._make_call()
        while self._unsent:
            if not (self.connection or self._rays).send(self._unsent[0]):
                return
            self._unsent = self._unsent[1:]

    def _make_call(self) -> None:
        lent = list(dict.fromkeys(ref for _, refs in self._asks.values() for ref in refs))
        if lent:
            self.disconnect()  # Ray brings objects with its calls
        elif self._connects and self.connection is None:
            self._connect_again()
        asks = [
            ask._replace(lent=tuple(map(lent.index, refs))) if refs else ask
            for ask, refs in self._asks.values()
        ]
        stepping = [ask.group for ask in asks if ask.code == Request.STEP]
        request = pack_asks(asks, self._wire.actions(stepping) if stepping else b"")
        call = Call([ask.group for ask in asks], request, lent)
        calls = {**self._calls, **dict.fromkeys(call.groups, call)}
        # No call in between, so that an interrupt finds either all of it or nothing.
        self._asks, self._calls, self._unsent = {}, calls, [*self._unsent, call]

    def call_of(self, group: int) -> Call | None:
        """The last call in which a group was asked; None while one is to be made."""
        return None if group in self._asks else self._calls.get(group)

    def connection_of(self, call: Call) -> Connection | None:
        """By which the reply to a call comes; None where Ray tells of it."""
        connection = None if call.by_ray else self.connection
        return None if connection is None or connection.word is not None else connection

    def ref_of(self, call: Call) -> Any:
        """What Ray tells by that there is a reply to a call, or that there will be none."""
        return call.ref if call.by_ray or self.connection is None else self.connection.word

    def receive(self, call: Call, seconds: float) -> None:
        """Waits until the reply to a call has been taken in.

        Raises:
            TimeoutError: it is not there in so many seconds.
            LostError: the actor is lost, or may be.
        """
        end = monotonic() + seconds
        if self.connection is not None and not call.by_ray:
            try:
                self.connection.receive(call, seconds)
                return
            except BrokenError as error:
                logger.warning("%s; it is asked by Ray's calls", self.unconnected(str(error)))
                self._connects = False
                self.disconnect()
                self.flush()
        self._rays.receive(call, max(end - monotonic(), 0.0))

    def progresses(self, call: Call) -> bool:
        """Whether a reply is under way, of which more has come since this was last asked."""
        way = self._rays if call.by_ray else self.connection
        return way is not None and way.progresses(call)

    def take(self, call: Call, reply: bytes | memoryview) -> None:
        """Takes the reply to a call: brings what is for the arrays there."""
        if call.answers is not None:
            return
        answers, start = unpack_answers(reply, len(call.groups))
        by_group = dict(zip(call.groups, answers, strict=True))
        extents = {group: answer.extents for group, answer in by_group.items() if answer.is_outcome}
        if extents:
            self._wire.take_results(reply, start, extents)
        # No group of it has been asked anything else before there is this.
        call.answers = by_group

    # -- where it is, and its end -----------------------------------------------------

    @property
    def place(self) -> tuple[int, str] | None:
        """Its process id and the id of its node; None as long as it has not been started."""
        if self._place is None and self._cluster.wait([self._whereabouts], 1, 0.0):
            with suppress(LostError, TimeoutError):
                self._place = self._cluster.get(self._whereabouts, LOOK)
        return self._place

    @property
    def pid(self) -> int | None:
        """Its process id; None as long as it has not been started."""
        return None if self.place is None else self.place[0]

    @property
    def where(self) -> str:
        """Its node, in words."""
        return "no node yet" if self.place is None else self._cluster.name_node(self.place[1])

    def lose(self, told: str) -> None:
        """Takes the actor for lost; it may still be there, and answer, and must not."""
        lines = told.strip().splitlines()
        self.lost = "\n".join(lines[:_LINES])
        self.kill()

    def ask_to_close(self) -> Any:
        """Has it close its environments, once it is done with what it is doing.

        Returns:
            What to wait for; None if the actor has been lost.
        """
        if self.lost is not None:
            return None
        self.disconnect()
        return self._cluster.call(self._handle.close)

    def kill(self) -> None:
        """Ends the actor, whatever it is doing."""
        if self.connection is not None:
            self.connection.close()
        discard_actor(self._cluster, self._handle)
