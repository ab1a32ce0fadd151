"""A Ray actor around a group of environments, seen from the caller: its start, loss and end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from xuance_envs.engine.ray.cluster import ActorOptions, LostError, RayCluster

__all__ = ["ActorSettings", "WorkerActor", "discard_actor", "start_actor"]

LOOK = 1.0
"""Seconds it may take to hear where an actor is that has been started."""

_LINES = 20
"""Of what Ray says about a lost actor, so many are shown."""


@dataclass(frozen=True)
class ActorSettings:
    """How the actors of one vector environment are started.

    Attributes:
        cluster: where they are.
        options: what each takes, and where.
        count: how many there are.
        threads: how many threads numeric libraries may use in each; None leaves them be.
        timeout: seconds each may take to answer; None for ever.
        start_timeout: seconds until each has to have made its environments; None for ever.
    """

    cluster: RayCluster
    options: ActorOptions
    count: int
    threads: int | None
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


def start_actor(settings: ActorSettings) -> Any:
    """Starts an actor, and does not wait for it; returns its handle."""
    return settings.cluster.start_actor(settings.options, settings.threads)


def discard_actor(cluster: RayCluster, handle: Any) -> None:
    """Ends an actor, whatever it is doing."""
    cluster.kill(handle)


class WorkerActor:
    """The actor of a worker, which is started, and not waited for.

    Args:
        settings: how it is started.

    Attributes:
        lost (str | None): what Ray says of its loss, once there is something.
    """

    def __init__(self, settings: ActorSettings) -> None:
        self.lost: str | None = None
        self._settings = settings
        self._cluster = settings.cluster
        self._handle = start_actor(settings)
        self._place: tuple[int, str] | None = None
        # Answered before anything else is, and so it tells whether the actor has started.
        self._whereabouts = self._cluster.call(self._handle.whereabouts)

    def ask(self, request: bytes) -> Any:
        """Has it answer a request; what to get the reply by."""
        return self._cluster.call(self._handle.answer, request)

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
