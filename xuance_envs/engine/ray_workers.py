"""The Ray actors of one vector environment: how each is started, and started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from xuance_envs.engine.crew import Crew
from xuance_envs.engine.ray_worker import ActorSettings, RayWorker, end_actors
from xuance_envs.engine.waiting import AtWork

__all__ = ["ActorWaiter", "RayWorkers"]

PATIENCE = 1.0
"""Seconds an actor that is replaced because an environment raised has to close the others."""


class RayWorkers(Crew[RayWorker]):
    """Starts actors, and has them make their environments.

    Args:
        settings: how they are started.
        split: index of the first environment and index after the last, of each.
        env_fns: makes an environment each; those of all actors.
        keywords: keyword arguments for each function.
        workers: where those that have been started are kept.
    """

    def __init__(
        self,
        settings: ActorSettings,
        split: Sequence[tuple[int, int]],
        env_fns: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
        workers: list[RayWorker],
    ) -> None:
        super().__init__(split, env_fns, keywords)
        self.processes = workers
        self._settings = settings

    def _start(self, index: int, started: Callable[[RayWorker], None]) -> None:
        started(RayWorker(self._settings, *self._split[index]))

    def _end(self, worker: RayWorker) -> None:
        end_actors(self._settings.cluster, [worker], PATIENCE)

    def _place(self, lo: int, hi: int) -> tuple[Any, ...]:
        return self._spaces, hi - lo


class ActorWaiter:
    """Waits for the first of some actors that replies.

    Args:
        crew: the actors.
        settings: how they are started.
    """

    def __init__(self, crew: RayWorkers, settings: ActorSettings) -> None:
        self._crew = crew
        self._cluster = settings.cluster

    def waits_for(self, group: int) -> bool:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""
        return True

    def watch(self, group: int) -> None:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""

    def now(self, at_work: AtWork) -> set[int]:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""
        return self._answering(at_work, None, 0.0)

    def wait(self, at_work: AtWork, until: float | None) -> set[int]:
        """See :class:`~xuance_envs.engine.waiting.Waiter`."""
        seconds = None if until is None else max(until - monotonic(), 0.0)
        return self._answering(at_work, 1, seconds)

    def _answering(self, at_work: AtWork, count: int | None, seconds: float | None) -> set[int]:
        group_of = {self._crew.processes[group].ref: group for group in at_work}
        if not group_of:
            return set()
        ready = self._cluster.wait(list(group_of), count or len(group_of), seconds)
        return {group_of[ref] for ref in ready}
