"""Pollers, which wait for the first group with a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from time import perf_counter

from xuance_envs._override import override
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.stream import milliseconds_until
from xuance_envs.engine.system.current import system


class Poller(ABC):
    """Interface for finding groups, identified by their indices, that may have replied."""

    def watch(self, group: int) -> None:  # noqa: B027  # optional
        """Register a group with a pending request."""

    @abstractmethod
    def poll(self, busy: Collection[int]) -> set[int]:
        """Return the busy groups that may have replied, without waiting."""

    @abstractmethod
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        """Wait for a reply until the deadline; return the busy groups that may have replied."""


class FdPoller(Poller):
    """Poller over the drivers' file descriptors."""

    def __init__(self, drivers: Sequence[Driver], spin: float) -> None:
        self._drivers = drivers
        self._spin = spin
        self._poll = system.poll()
        self._group_of: dict[int, int] = {}
        self._watched: dict[int, tuple[int, ...]] = {}

    @override
    def watch(self, group: int) -> None:
        fds = self._drivers[group].fds
        if fds != self._watched.get(group, ()):
            self._unwatch(group)  # the worker was restarted
            for fd in fds:
                self._poll.register(fd, system.POLLIN)
                self._group_of[fd] = group
            self._watched[group] = fds

    @override
    def poll(self, busy: Collection[int]) -> set[int]:
        return self._groups_of(self._poll.poll(0), busy)

    @override
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        end = perf_counter() + self._spin
        while perf_counter() < end:
            if events := self._poll.poll(0):
                return self._groups_of(events, busy)
            system.yield_cpu()  # a worker may need this CPU
        return self._groups_of(self._poll.poll(milliseconds_until(until)), busy)

    def _groups_of(self, events: Iterable[tuple[int, int]], busy: Collection[int]) -> set[int]:
        groups = set()
        for fd, _ in events:
            group = self._group_of.get(fd)
            if group is None:  # second descriptor of an ended process
                continue
            groups.add(group)
            if group not in busy:
                self._unwatch(group)  # its process ended; the next request reports that
        return groups

    def _unwatch(self, group: int) -> None:
        for fd in self._watched.pop(group, ()):
            if self._group_of.get(fd) == group:  # another group may have reused the descriptor
                self._poll.unregister(fd)
                del self._group_of[fd]
