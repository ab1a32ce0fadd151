"""A Ray actor around groups of environments, seen from the caller: its start, requests and end.

A request to several of its groups is one call with one reply. So what groups are asked is kept
until somebody says that this is all, or wants an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.requests import Request
from xuance_envs.engine.ray.actor import ActorPlan
from xuance_envs.engine.ray.cluster import ActorOptions, LostError, RayCluster
from xuance_envs.engine.ray.messages import Answer, Ask, pack_asks, unpack_answers
from xuance_envs.engine.ray.wire import ActorWire

__all__ = ["ActorSettings", "Call", "WorkerActor", "discard_actor", "start_actor"]

LOOK = 1.0
"""Seconds it may take to hear where an actor is that has been started."""

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


class Call:
    """A call of an actor, with what some of its groups are asked.

    Args:
        ref: what Ray knows it by.
        groups: those.

    Attributes:
        ref: as given.
        groups (list[int]): as given.
        answers: by group, once the reply is there and in the arrays.
    """

    __slots__ = ("answers", "groups", "ref")

    def __init__(self, ref: Any, groups: list[int]) -> None:
        self.ref = ref
        self.groups = groups
        self.answers: dict[int, Answer] | None = None


class WorkerActor:
    """An actor, which is started, and not waited for.

    Args:
        settings: how those of the vector environment are started.
        options: what this one takes, and where.
        plan: what it is for.

    Attributes:
        plan (ActorPlan): as given.
        lost (str | None): what Ray says of its loss, once there is something.
    """

    def __init__(self, settings: ActorSettings, options: ActorOptions, plan: ActorPlan) -> None:
        self.plan = plan
        self.lost: str | None = None
        self._cluster = settings.cluster
        self._handle = start_actor(settings, options, plan)
        self._place: tuple[int, str] | None = None
        self._wire: ActorWire
        self._asks: dict[int, tuple[Ask, Sequence[Any]]] = {}
        self._calls: dict[int, Call] = {}
        # Answered before anything else is, and so it tells whether the actor has started.
        self._whereabouts = self._cluster.call(self._handle.whereabouts)

    def attach(self, arrays: StepArrays) -> None:
        """Takes note of the caller's arrays that its groups' results are to be in."""
        self._wire = ActorWire(arrays, self.plan.split)

    def allocate(self, spaces: bytes) -> Any:
        """Has it lay out its own arrays.

        Args:
            spaces: an observation and an action space, pickled.

        Returns:
            What to wait for.
        """
        return self._cluster.call(self._handle.attach, spaces)

    def ask(self, ask: Ask, lent: Sequence[Any] = ()) -> None:
        """Has a group asked, together with others, when :meth:`flush` is called.

        Args:
            ask: what.
            lent: what Ray knows objects by that it is lent.
        """
        self._asks[ask.group] = ask, lent

    def flush(self) -> None:
        """Makes a call of what there is to ask.

        Done again after an interrupt, the actor takes it for the same one.
        """
        if not self._asks:
            return
        lent = list(dict.fromkeys(ref for _, refs in self._asks.values() for ref in refs))
        asks = [
            ask._replace(lent=tuple(map(lent.index, refs))) if refs else ask
            for ask, refs in self._asks.values()
        ]
        stepping = [ask.group for ask in asks if ask.code == Request.STEP]
        request = pack_asks(asks, self._wire.actions(stepping) if stepping else b"")
        ref = self._cluster.call(self._handle.answer, request, *lent)
        call = Call(ref, [ask.group for ask in asks])
        self._calls.update(dict.fromkeys(call.groups, call))
        self._asks = {}

    def call_of(self, group: int) -> Call | None:
        """The last call in which a group was asked; None while one is to be made."""
        return None if group in self._asks else self._calls.get(group)

    def take(self, call: Call, reply: bytes) -> None:
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
        return None if self.lost is not None else self._cluster.call(self._handle.close)

    def kill(self) -> None:
        """Ends the actor, whatever it is doing."""
        discard_actor(self._cluster, self._handle)
