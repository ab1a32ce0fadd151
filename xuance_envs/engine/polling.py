"""How to wait for the first of many groups that answers."""

from __future__ import annotations

import os
import select
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from time import monotonic, perf_counter

from xuance_envs._override import override
from xuance_envs.engine.driver import Driver

__all__ = ["FdPoller", "Poller", "milliseconds_until"]


class Poller(ABC):
    """Tells which groups may have answered; groups go by their numbers."""

    @abstractmethod
    def watch(self, group: int) -> None:
        """Takes note that a group has been asked for something."""

    @abstractmethod
    def poll(self, busy: Collection[int]) -> set[int]:
        """Those groups at work that may have answered, without waiting."""

    @abstractmethod
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        """The same; where there are none, waits for one, or until a time."""


class FdPoller(Poller):
    """Waits for groups by their drivers' descriptors."""

    def __init__(self, drivers: Sequence[Driver], spin: float) -> None:
        self._drivers = drivers
        self._spin = spin
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._group_of: dict[int, int] = {}
        self._watched: dict[int, tuple[int, ...]] = {}

    @override
    def watch(self, group: int) -> None:
        fds = self._drivers[group].fds
        if fds != self._watched.get(group, ()):
            self._unwatch(group)  # another process has taken over
            assert self._poll is not None
            for fd in fds:
                self._poll.register(fd, select.POLLIN)
                self._group_of[fd] = group
            self._watched[group] = fds

    @override
    def poll(self, busy: Collection[int]) -> set[int]:
        return self._groups_of(self._poll_now(), busy)

    @override
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        assert self._poll is not None
        end = perf_counter() + self._spin
        while perf_counter() < end:
            if events := self._poll_now():
                return self._groups_of(events, busy)
            os.sched_yield()  # a worker may be waiting for this very CPU
        return self._groups_of(self._poll.poll(milliseconds_until(until)), busy)

    def _poll_now(self) -> Sequence[tuple[int, int]]:
        return () if self._poll is None else self._poll.poll(0)

    def _groups_of(self, events: Iterable[tuple[int, int]], busy: Collection[int]) -> set[int]:
        groups = set()
        for fd, _ in events:
            group = self._group_of.get(fd)
            if group is None:  # the other descriptor of a process that has ended
                continue
            groups.add(group)
            if group not in busy:
                self._unwatch(group)  # its process has ended, which is told when it is asked
        return groups

    def _unwatch(self, group: int) -> None:
        for fd in self._watched.pop(group, ()):
            if self._group_of.get(fd) == group:  # and not of a process that has the number now
                assert self._poll is not None
                self._poll.unregister(fd)
                del self._group_of[fd]


def milliseconds_until(deadline: float | None) -> float | None:
    """The time left until a deadline, as :meth:`select.poll.poll` wants it."""
    return None if deadline is None else max(0.0, (deadline - monotonic()) * 1e3)
