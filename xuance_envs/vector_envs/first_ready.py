"""Which groups of environments are at work, and which of them has answered first."""

from __future__ import annotations

import operator
import os
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.doorbell import milliseconds_until
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.infos import StepInfos
from xuance_envs.errors import NotSteppingError, name_envs

__all__ = ["FirstReady", "StepBatch"]

_AT_ONCE = 0.0


class StepBatch(NamedTuple):
    """The environments that answered, k of them, in the order of ``env_ids``.

    Attributes:
        obs: ``(k, *obs_shape)``, as ``step`` returns them.
        rewards: ``(k,)`` float32; 0 after ``async_reset``.
        terminated: ``(k,)`` bool.
        truncated: ``(k,)`` bool.
        infos: a sequence of k dicts.
        env_ids: ``(k,)`` int, ascending: which environments they are.
    """

    obs: Any
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: StepInfos
    env_ids: NDArray[np.intp]


class FirstReady:
    """Starts groups once they have all their actions, and collects them as they finish.

    Args:
        drivers: the groups.
        spin: how long to look for an answer without sleeping, in seconds.

    Attributes:
        in_flight (ndarray): ``(num_envs,)`` bool: the environments that have been sent and not
            been received since.
        active (bool): whether there are any.
    """

    def __init__(self, drivers: Sequence[Driver], spin: float) -> None:
        self._drivers = drivers
        self._spin = spin
        self._envs = [np.arange(driver.lo, driver.hi) for driver in drivers]
        self._group_of = np.repeat(np.arange(len(drivers)), [len(envs) for envs in self._envs])
        self._firsts = [driver.lo for driver in drivers]
        self._local = [k for k, driver in enumerate(drivers) if not driver.fds]
        self.in_flight = np.zeros(drivers[-1].hi, np.bool_)
        self.active = False
        # How the groups at work were asked, and under which number; those among them nobody has
        # waited for yet; what came of those that are done and not received yet.
        self._asked: dict[int, tuple[int, Callable[[], None]]] = {}
        self._new: dict[int, tuple[int, Callable[[], None]]] = {}
        self._ready: dict[int, Any] = {}
        self._interrupted = False
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._group_at: dict[int, int] = {}
        self._watched: dict[int, tuple[int, ...]] = {}
        self._limited: set[int] = set()

    def completed_by(self, env_ids: NDArray[np.intp]) -> list[int]:
        """The groups that have all their actions once these environments are sent, too."""
        sent = self.in_flight.copy()
        sent[env_ids] = True
        complete = np.logical_and.reduceat(sent, self._firsts)
        touched = np.zeros_like(complete)
        touched[self._group_of[env_ids]] = True
        return list(np.flatnonzero(complete & touched).tolist())

    def send(
        self, env_ids: NDArray[np.intp], asks: Mapping[int, tuple[int, Callable[[], None]]]
    ) -> None:
        """Takes note that environments are sent, and starts groups.

        Args:
            env_ids: the environments.
            asks: for each group to start, the number it is asked under, and what asks it.
        """
        asked, new = {**self._asked, **asks}, {**self._new, **asks}
        in_flight = self.in_flight.copy()
        in_flight[env_ids] = True
        # No call in between, so that an interrupt finds either all of it or nothing.
        self._asked, self._new, self.in_flight, self.active = asked, new, in_flight, True
        for _, ask in asks.values():
            ask()

    def wait(self, wanted: int, timeout: float | None) -> dict[int, Any]:
        """Waits until so many environments have answered, or until the time is over.

        Returns:
            What came of each group that has, by its number; :meth:`receive` takes note of it.

        Raises:
            EnvError: an environment failed.
            WorkerDiedError: the process around a group ended.
            WorkerTimeoutError: a process took longer than it may.
        """
        deadline = None if timeout is None else monotonic() + timeout
        for k, (tag, ask) in self._new.items():
            if self._drivers[k].tag != tag:  # an interrupt came before it was asked
                ask()
            self._watch(k)
        self._new = {}
        if self._interrupted:  # an answer may have been read that nobody took note of
            self._collect(self._asked)
        self._interrupted = True
        self._collect(self._answering(self._poll_now))
        while self._count() < wanted:
            local = next((k for k in self._local if self._is_at_work(k)), None)
            if local is not None:
                self._ready[local] = self._drivers[local].result()
                self._collect(self._answering(self._poll_now))
                continue
            if deadline is not None and monotonic() >= deadline:
                break
            self._collect(self._answering(lambda: self._block(deadline)))
        return dict(sorted(self._ready.items()))

    def envs_of(self, groups: Iterable[int]) -> NDArray[np.intp]:
        """The environments of some groups, in the groups' order."""
        return np.concatenate([self._envs[k] for k in groups])

    def receive(self, env_ids: NDArray[np.intp]) -> None:
        """Takes note that the environments of the groups that are ready have been received."""
        asked = {k: asking for k, asking in self._asked.items() if k not in self._ready}
        in_flight = self.in_flight.copy()
        in_flight[env_ids] = False
        active = bool(in_flight.any())
        # As in :meth:`send`.
        self._asked, self._ready, self._interrupted = asked, {}, False
        self.in_flight, self.active = in_flight, active

    def finish(self) -> dict[int, Any]:
        """Waits for every group at work, and forgets what has been sent.

        Returns:
            What came of each, by its number.
        """
        for k, (tag, ask) in self._asked.items():
            if self._drivers[k].tag != tag:
                ask()
        results = {k: self._drivers[k].result() for k in self._asked}
        in_flight = np.zeros_like(self.in_flight)
        self._asked, self._new, self._ready = {}, {}, {}
        self._interrupted = self.active = False
        self.in_flight = in_flight
        return results

    def wanted(self, min_envs: int | None) -> int:
        """How many environments to wait for, if so many can answer.

        Raises:
            NotSteppingError: nothing that was sent has been started.
            ValueError: fewer environments have been started.
        """
        started = sum(len(self._envs[k]) for k in self._asked)
        wanted = 1 if min_envs is None else operator.index(min_envs)
        if not started:
            raise NotSteppingError(
                f"recv was called, but no environment is stepping{self._why_not_more()}"
            )
        if not 1 <= wanted <= started:
            raise ValueError(
                f"min_envs: expected from 1 to {started}, for so many environments are "
                f"stepping, got {min_envs}{self._why_not_more()}"
            )
        return wanted

    def _why_not_more(self) -> str:
        held = self.in_flight.copy()
        held[self.started()] = False
        if not held.any():
            return ""
        return (
            f"; {name_envs(np.flatnonzero(held).tolist())} have been sent, and wait for the "
            "actions of the others that share their worker"
        )

    def started(self) -> list[int]:
        """The environments that are stepping."""
        return [env for k in sorted(self._asked) for env in self._envs[k].tolist()]

    # -- who has answered -------------------------------------------------------------

    def _is_at_work(self, k: int) -> bool:
        return k in self._asked and k not in self._ready

    def _count(self) -> int:
        return sum(len(self._envs[k]) for k in self._ready)

    def _dues(self) -> dict[int, float]:
        """By when each group at work that may not take any time must have answered."""
        dues = {k: self._drivers[k].due for k in self._limited if self._is_at_work(k)}
        return {k: due for k, due in dues.items() if due is not None}

    def _collect(self, groups: Iterable[int]) -> None:
        """Takes the answers of those groups that have one."""
        for k in groups:
            if self._is_at_work(k) and k not in self._local:
                try:
                    self._ready[k] = self._drivers[k].result(_AT_ONCE)
                except TimeoutError:
                    self._watch(k)

    def _answering(self, poll: Callable[[], Iterable[tuple[int, int]]]) -> set[int]:
        """Groups that may have answered, or should have by now."""
        groups = set()
        for fd, _ in poll():
            k = self._group_at.get(fd)
            if k is None:  # the other descriptor of a process that has ended
                continue
            groups.add(k)
            if not self._is_at_work(k):
                self._unwatch(k)  # its process has ended, which is told when it is asked
        if not groups and self._limited:
            now = monotonic()
            groups = {k for k, due in self._dues().items() if due < now}
        return groups

    def _poll_now(self) -> Iterable[tuple[int, int]]:
        return () if self._poll is None else self._poll.poll(0)

    def _block(self, deadline: float | None) -> Iterable[tuple[int, int]]:
        """Waits for any group to answer, until the deadline or until one is overdue."""
        assert self._poll is not None
        end = perf_counter() + self._spin
        while perf_counter() < end:
            if events := self._poll.poll(0):
                return events
            os.sched_yield()  # a worker may be waiting for this very CPU
        times = [*self._dues().values()]
        if deadline is not None:
            times.append(deadline)
        return self._poll.poll(milliseconds_until(min(times, default=None)))

    def _watch(self, k: int) -> None:
        fds = self._drivers[k].fds
        if self._drivers[k].due is not None:
            self._limited.add(k)
        if fds != self._watched.get(k, ()):
            self._unwatch(k)  # another process has taken over
            assert self._poll is not None
            for fd in fds:
                self._poll.register(fd, select.POLLIN)
                self._group_at[fd] = k
            self._watched[k] = fds

    def _unwatch(self, k: int) -> None:
        for fd in self._watched.pop(k, ()):
            if self._group_at.get(fd) == k:  # and not of a process that has the number now
                assert self._poll is not None
                self._poll.unregister(fd)
                del self._group_at[fd]
