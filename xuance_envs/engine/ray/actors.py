"""Ray actors as a backend: how each is started, started again, waited for, and ended."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any

from xuance_envs.engine.backend import HURRY, Backend
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.ray.cluster import RayCluster
from xuance_envs.engine.ray.driver import ActorDriver
from xuance_envs.engine.ray.worker_actor import ActorSettings
from xuance_envs.engine.waiting import Waiter

__all__ = ["Actors"]

PATIENCE = 5.0
"""Seconds actors have to close their environments before they are killed."""


class Actors(Backend[ActorDriver]):
    """The actors of one vector environment.

    Args:
        settings: how they are started.
        split: index of the first environment and index after the last, of each.
        env_fns: makes an environment each; those of all actors.
        keywords: keyword arguments for each function.
        info_bytes: room for the arrays in each environment's info.
    """

    def __init__(
        self,
        settings: ActorSettings,
        split: Sequence[tuple[int, int]],
        env_fns: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
        info_bytes: int = INFO_BYTES,
    ) -> None:
        super().__init__(split, env_fns, keywords, info_bytes=info_bytes)
        self._settings = settings

    def allocate(self, spaces: tuple[Any, Any], num_envs: int) -> StepArrays:
        """See :class:`~xuance_envs.engine.backend.Backend`; replies are copied into them."""
        return StepArrays.allocate(*spaces, num_envs, info_bytes=self.info_bytes)

    def waiter(self, drivers: Sequence[Driver]) -> Waiter:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        return _ActorWaiter(self, self._settings)

    def end(self, patience: float | None = None) -> None:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        end_actors(self._settings.cluster, self.workers, PATIENCE if patience is None else patience)

    def ends_with(self, owner: Any) -> Callable[[], Any]:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        return weakref.finalize(owner, _end, self, self._settings, os.getpid())

    def _start(self, index: int, started: Callable[[ActorDriver], None]) -> None:
        started(ActorDriver(self._settings, *self._split[index]))

    def _end(self, worker: ActorDriver) -> None:
        end_actors(self._settings.cluster, [worker], HURRY)

    def _place(self, lo: int, hi: int) -> tuple[Any, ...]:
        return self._spaces, hi - lo, self.info_bytes


class _ActorWaiter(Waiter):
    """Waits for the first of some actors that replies.

    Args:
        actors: the actors.
        settings: how they are started.
    """

    def __init__(self, actors: Actors, settings: ActorSettings) -> None:
        self._actors = actors
        self._cluster = settings.cluster

    def watch(self, group: int) -> None:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""

    def now(self, at_work: Collection[int]) -> set[int]:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""
        return self._answering(at_work, None, 0.0)

    def wait(self, at_work: Collection[int], until: float | None) -> set[int]:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""
        seconds = None if until is None else max(until - monotonic(), 0.0)
        return self._answering(at_work, 1, seconds)

    def _answering(
        self, at_work: Collection[int], count: int | None, seconds: float | None
    ) -> set[int]:
        group_of = {self._actors.workers[group].ref: group for group in at_work}
        if not group_of:
            return set()
        ready = self._cluster.wait(list(group_of), count or len(group_of), seconds)
        return {group_of[ref] for ref in ready}


def end_actors(cluster: RayCluster, drivers: list[ActorDriver], patience: float = PATIENCE) -> None:
    """Ends actors: asks them to close their environments, then kills them.

    Args:
        cluster: where they are.
        drivers: theirs; the list is empty afterwards.
        patience: seconds they have to close their environments.
    """
    actors = [driver.actor for driver in drivers]
    try:
        if cluster.alive:
            calls = [call for actor in actors if (call := actor.ask_to_close()) is not None]
            if calls:
                cluster.wait(calls, len(calls), patience)
    finally:
        while drivers:
            drivers.pop().actor.kill()


def _end(actors: Actors, settings: ActorSettings, owner: int) -> None:
    if os.getpid() != owner:
        return  # forked from it
    try:
        actors.end(HURRY)
    finally:
        settings.cluster.release()
