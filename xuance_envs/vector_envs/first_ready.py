"""Which groups of environments are at work, and which of them has answered first."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.driver import Driver
from xuance_envs.engine.infos import StepInfos
from xuance_envs.engine.waiting import Waiter
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

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3) as envs:
        ...     envs.async_reset(seed=0)
        ...     batch = envs.recv(min_envs=3)
        >>> batch.env_ids, batch.obs.shape, batch.rewards
        (array([0, 1, 2]), (3, 4), array([0., 0., 0.], dtype=float32))
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
        waiter: tells which of them may have answered.

    Attributes:
        in_flight (ndarray): ``(num_envs,)`` bool: the environments that have been sent and not
            been received since.
        active (bool): whether there are any.
    """

    def __init__(self, drivers: Sequence[Driver], waiter: Waiter) -> None:
        self._drivers = drivers
        self._waiter = waiter
        self._envs = [np.arange(driver.lo, driver.hi) for driver in drivers]
        self._group_of = np.repeat(np.arange(len(drivers)), [len(envs) for envs in self._envs])
        self._firsts = [driver.lo for driver in drivers]
        self._local = [k for k in range(len(drivers)) if not waiter.waits_for(k)]
        self.in_flight = np.zeros(drivers[-1].hi, np.bool_)
        self.active = False
        # How the groups at work were asked, and under which number; those among them nobody has
        # waited for yet; what came of those that are done and not received yet.
        self._asked: dict[int, tuple[int, Callable[[], None]]] = {}
        self._new: dict[int, tuple[int, Callable[[], None]]] = {}
        self._ready: dict[int, Any] = {}
        self._interrupted = False
        self._limited: set[int] = set()

    # The groups at work: they have been asked, and their answer has not been taken.

    def __contains__(self, k: object) -> bool:
        return k in self._asked and k not in self._ready

    def __iter__(self) -> Iterator[int]:
        return (k for k in self._asked if k not in self._ready)

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
        self._collect(self._or_overdue(self._waiter.now(self)))
        while self._count() < wanted:
            local = next((k for k in self._local if k in self), None)
            if local is not None:
                self._ready[local] = self._drivers[local].result()
                self._collect(self._or_overdue(self._waiter.now(self)))
                continue
            if deadline is not None and monotonic() >= deadline:
                break
            self._collect(self._or_overdue(self._wait_until(deadline)))
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

    def _count(self) -> int:
        return sum(len(self._envs[k]) for k in self._ready)

    def _dues(self) -> dict[int, float]:
        """By when each group at work that may not take any time must have answered."""
        dues = {k: self._drivers[k].due for k in self._limited if k in self}
        return {k: due for k, due in dues.items() if due is not None}

    def _collect(self, groups: Iterable[int]) -> None:
        """Takes the answers of those groups that have one."""
        for k in groups:
            if k in self and k not in self._local:
                try:
                    self._ready[k] = self._drivers[k].result(_AT_ONCE)
                except TimeoutError:
                    self._watch(k)

    def _wait_until(self, deadline: float | None) -> set[int]:
        """Waits for any group to answer, until the deadline or until one is overdue."""
        times = [*self._dues().values()]
        if deadline is not None:
            times.append(deadline)
        return self._waiter.wait(self, min(times, default=None))

    def _or_overdue(self, groups: set[int]) -> set[int]:
        """Groups that may have answered; if there are none, those that should have by now."""
        if groups or not self._limited:
            return groups
        now = monotonic()
        return {k for k, due in self._dues().items() if due < now}

    def _watch(self, k: int) -> None:
        if self._drivers[k].due is not None:
            self._limited.add(k)
        self._waiter.watch(k)
