"""Asynchronous requests, and the pollers that find the groups with a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.stream import milliseconds_until
from xuance_envs.engine.system.current import system
from xuance_envs.errors import AlreadySteppingError, NotSteppingError, name_envs

Request = tuple[int, Callable[[], None]]  # tag of a request, and the function that submits it


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


class InFlight:
    """Environments with outstanding results, and their groups' requests."""

    def __init__(self, drivers: Sequence[Driver], poller: Poller) -> None:
        self.envs = np.zeros(drivers[-1].hi, np.bool_)
        self.requests: dict[int, Request] = {}
        self.failed_group = -1
        self._drivers = drivers
        self._poller = poller
        self._local = [k for k, driver in enumerate(drivers) if driver.runs_in_result]
        self._envs_of = [np.arange(driver.lo, driver.hi, dtype=np.intp) for driver in drivers]
        self._firsts = [driver.lo for driver in drivers]
        # Requests that the poller does not watch yet, and results not yet received.
        self._unwatched: dict[int, Request] = {}
        self._ready: dict[int, Any] = {}
        self._interrupted = False
        self._with_deadline: set[int] = set()

    @property
    def any(self) -> bool:
        return bool(np.count_nonzero(self.envs))

    def groups_completed_by(self, env_ids: NDArray[np.intp]) -> list[int]:
        """Return the groups whose actions are complete once ``env_ids`` are sent."""
        already_sent = self.envs[env_ids]
        if already_sent.any():
            raise AlreadySteppingError(
                f"send: a result of {name_envs(env_ids[already_sent].tolist())} is still "
                f"outstanding: receive it with recv first{self._waiting_hint()}"
            )
        sent = self.envs.copy()
        sent[env_ids] = True
        complete = np.logical_and.reduceat(sent, self._firsts)
        touched = np.logical_or.reduceat(sent ^ self.envs, self._firsts)
        return list(np.flatnonzero(complete & touched).tolist())

    def add(self, env_ids: NDArray[np.intp], submissions: Mapping[int, Request]) -> None:
        """Mark environments as stepping and submit the requests of their groups."""
        requests, new = {**self.requests, **submissions}, {**self._unwatched, **submissions}
        envs = self.envs.copy()
        envs[env_ids] = True
        interrupted = self._interrupted
        # No call in between, so that an interrupt finds either all of these updated or none. A
        # request that is only partly submitted is completed by the wait for its result.
        self.requests, self._unwatched, self.envs = requests, new, envs
        self._interrupted = True
        for _, submit in submissions.values():
            submit()
        self._interrupted = interrupted

    def wait(self, wanted: int, timeout: float | None) -> dict[int, Any]:
        """Wait until enough environments are ready or the timeout expires; return the results."""
        deadline = None if timeout is None else monotonic() + timeout
        # Local groups run only here. Those that an earlier call left waiting come first.
        overtaken = [k for k in self._local if k in self.requests and k not in self._unwatched]
        for k, (tag, submit) in self._unwatched.items():
            if self._drivers[k].tag != tag:  # interrupted before submission
                submit()
            self._watch(k)
        self._unwatched = {}
        if self._interrupted:  # a reply may have been read but not stored
            self._collect(self.requests)
        self._interrupted = True
        ready, poller = self._ready, self._poller
        for k in overtaken:
            if k not in ready:
                ready[k] = self._take_reply(k)
        if ready or self._local or deadline is not None:
            self._collect(self._or_timed_out(poller.poll(self._busy_groups())))
        while sum([len(self._envs_of[k]) for k in ready]) < wanted:
            busy = self._busy_groups()
            local = next((k for k in self._local if k in busy), None)
            if local is not None:
                ready[local] = self._take_reply(local)
                self._collect(self._or_timed_out(poller.poll(self._busy_groups())))
                continue
            if deadline is not None and not monotonic() < deadline:  # also if it is NaN
                break
            until = deadline
            if self._with_deadline:
                ends = [*self._reply_deadlines().values(), *([] if until is None else [until])]
                until = min(ends, default=None)
            self._collect(self._or_timed_out(poller.wait(busy, until)))
        return dict(sorted(ready.items()))

    def receive(self, env_ids: NDArray[np.intp]) -> bool:
        """Mark the environments of all ready groups as received; return whether others are not.

        An interrupt after that loses the results, so everything else comes before.
        """
        requests = {k: request for k, request in self.requests.items() if k not in self._ready}
        envs = self.envs.copy()
        envs[env_ids] = False
        are_left = bool(np.count_nonzero(envs))
        # No call in between, as in add.
        self.requests, self._ready, self._interrupted, self.envs = requests, {}, False, envs
        return are_left

    def clear(self) -> None:
        """Mark all requests as received."""
        envs = np.zeros_like(self.envs)
        self.requests, self._unwatched, self._ready = {}, {}, {}
        self._interrupted = False
        self.envs = envs

    def envs_to_wait_for(self, min_envs: int | None) -> int:
        """Validate ``min_envs`` and return the number of environments to wait for."""
        started = len(self.stepping_envs())
        wanted = 1 if min_envs is None else min_envs
        if not started:
            raise NotSteppingError(
                "recv was called, but no environment is stepping"
                + (self._waiting_hint() or "; call async_reset() or send(actions, env_ids) first")
            )
        if not 1 <= wanted <= started:
            raise ValueError(
                f"min_envs: expected 1 to {started}, the number of stepping environments, "
                f"got {min_envs}{self._waiting_hint()}"
            )
        return wanted

    def stepping_envs(self) -> list[int]:
        return [env for k in sorted(self.requests) for env in self._envs_of[k].tolist()]

    def envs_of(self, groups: Iterable[int]) -> NDArray[np.intp]:
        envs = [self._envs_of[k] for k in groups]
        return envs[0].copy() if len(envs) == 1 else np.concatenate(envs)

    def _waiting_hint(self) -> str:
        held = self.envs.copy()
        held[self.stepping_envs()] = False
        if not held.any():
            return ""
        return (
            f"; {name_envs(np.flatnonzero(held).tolist())} cannot step before the other "
            "environments of the same worker get actions"
        )

    def _busy_groups(self) -> set[int]:
        return self.requests.keys() - self._ready.keys()

    def _reply_deadlines(self) -> dict[int, float]:
        """Return the deadline of each busy group that has one."""
        busy = self._with_deadline & self._busy_groups()
        return {k: end for k in busy if (end := self._drivers[k].reply_deadline) is not None}

    def _collect(self, groups: Iterable[int]) -> None:
        for k in groups:
            if k in self.requests and k not in self._ready and k not in self._local:
                try:
                    self._ready[k] = self._take_reply(k, 0.0)  # without waiting
                except TimeoutError:
                    self._watch(k)

    def _take_reply(self, k: int, deadline: float | None = None) -> Any:
        """Return a group's result; a group that raises is no longer pending."""
        try:
            return self._drivers[k].result(deadline)
        except TimeoutError:
            raise
        except Exception:
            requests = {other: each for other, each in self.requests.items() if other != k}
            envs = self.envs.copy()
            envs[self._envs_of[k]] = False
            # No call in between, as in add.
            self.requests, self.failed_group, self.envs = requests, k, envs
            raise

    def _or_timed_out(self, groups: set[int]) -> set[int]:
        """Return ``groups``, or if there are none, the groups past their deadline."""
        if groups or not self._with_deadline:
            return groups
        return {k for k, end in self._reply_deadlines().items() if end < monotonic()}

    def _watch(self, k: int) -> None:
        if self._drivers[k].reply_deadline is not None:
            self._with_deadline.add(k)
        self._poller.watch(k)
