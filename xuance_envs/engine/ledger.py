"""Ledger of requests to groups and their outstanding replies.

There is one kind of request at a time: a step of all groups, commands to some groups, or
asynchronous requests. A KeyboardInterrupt may arrive between any two bytecodes. Requests are
therefore recorded before they are submitted, by plain assignments. Every wait can be repeated: it
first submits the requests that an interrupt left unsubmitted, and results can be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.backend import Backend
from xuance_envs.engine.driver import CommonDriver, Driver
from xuance_envs.engine.group.outcome import OK, Outcome
from xuance_envs.engine.info_collector import InfoCollector
from xuance_envs.engine.polling import FdPoller, InFlight, Poller, Request
from xuance_envs.errors import (
    AlreadySteppingError,
    ClosedVecEnvError,
    EnvError,
    NotSteppingError,
    StateError,
    WorkerDiedError,
    WorkerTimeoutError,
    name_envs,
)


class Pending(IntEnum):
    """Kind of the pending requests, like Gymnasium's ``AsyncState``."""

    NOTHING = 0
    STEP = 1
    COMMAND = 2
    SENT = 3


_NOTHING, _STEP, _COMMAND, _SENT = Pending

Replies = Sequence[tuple[int, Any]]  # groups and their replies to a command

_T = TypeVar("_T")


class Ledger:
    def __init__(
        self,
        drivers: list[Driver],
        info_collector: InfoCollector,
        backend: Backend[Any] | None = None,
    ) -> None:
        self.drivers = drivers
        self.group_of = [k for k, driver in enumerate(drivers) for _ in range(driver.lo, driver.hi)]
        self._info_collector = info_collector
        self.pending: Pending = _NOTHING
        self.closed = False
        self._before_step: Callable[[], None] | None = None
        self._after_submit: Callable[[], None] | None = None
        self.common: CommonDriver | None = None
        poller: Poller
        if backend is None:
            poller = FdPoller(drivers, 0.0)
        else:
            poller, self.common = backend.poller(drivers), backend.common_driver(drivers)
            self._before_step, self._after_submit = backend.before_step, backend.after_submit
        self.in_flight = InFlight(drivers, poller)
        self._tag = 0
        self._commands: dict[int, Request] = {}
        # A local group runs in result(), while workers step. So it comes before waiting for them.
        self._local_first = sorted(enumerate(drivers), key=lambda item: not item[1].runs_in_result)
        self._all_submitted = True
        self._actions: Mapping[int, Any] = {}

    def split_by_group(self, ids: Sequence[int]) -> list[tuple[int, Driver, list[int]]]:
        """Split environments by group, into tuples of group, driver and environments."""
        shares: dict[int, list[int]] = {}
        for env in ids:
            shares.setdefault(self.group_of[env], []).append(env)
        return [(k, self.drivers[k], shares[k]) for k in sorted(shares)]

    @property
    def stepping(self) -> bool:
        """True while a step of all environments is pending."""
        return self.pending is _STEP

    # -- synchronous step -------------------------------------------------------------

    def start_step(self, actions: Mapping[int, Any]) -> None:
        if self._before_step is not None:
            self._before_step()
        self._actions = actions
        self._tag = tag = self._tag + 1
        self._all_submitted = False
        self.pending = _STEP
        if self.common is None or not self.common.start(tag, actions):
            if actions:
                for k, driver in enumerate(self.drivers):
                    driver.submit_step(tag, actions.get(k))
            else:
                for driver in self.drivers:
                    driver.submit_step(tag, None)
        self._all_submitted = True
        if self._after_submit is not None:
            self._after_submit()

    def finish_step(self, fail: Callable[[], Any]) -> list[tuple[int, Outcome]]:
        """Wait for the step; return outcomes other than OK. If a group raises, call ``fail``."""
        if not self._all_submitted:
            self._complete_submission()
        outcomes = []
        common = self.common
        try:
            if common is not None and common.tag == self._tag:
                outcomes = common.outcomes()
            else:
                for k, driver in self._local_first:
                    outcome = driver.result()
                    if outcome is not OK:
                        outcomes.append((k, outcome))
                if common is not None:
                    common.started_by_drivers(self._tag)
        except Exception as error:
            self.check_not_closed(error)
            self.pending = _NOTHING
            fail()
            raise
        if self.closed:
            self.check_not_closed()
        return outcomes

    def _complete_submission(self) -> None:
        """Submit the requests that an interrupt left unsubmitted."""
        tag, actions = self._tag, self._actions
        if self.common is None or not self.common.start(tag, actions):
            for k, driver in enumerate(self.drivers):
                if driver.tag != tag:
                    driver.submit_step(tag, actions.get(k))

    # -- commands ---------------------------------------------------------------------

    def start(self, packed: Mapping[int, Any]) -> None:
        requests = self._make_requests(packed)
        self.pending, self._commands = _COMMAND, requests
        for _, submit in requests.values():
            submit()
        if self._after_submit is not None:
            self._after_submit()

    def _make_requests(self, packed: Mapping[int, Any]) -> dict[int, Request]:
        tag = self._tag = self._tag + 1
        return {k: (tag, partial(self.drivers[k].submit, tag, packed[k])) for k in packed}

    def command(
        self,
        packed: Mapping[int, Any],
        take: Callable[[Replies], _T],
        fail: Callable[[Exception], Any] | None = None,
    ) -> _T:
        """Run packed commands and return ``take(replies)``; call ``fail`` with a group's error."""
        self.start(packed)
        return self.finish(take, fail)

    def finish(
        self, take: Callable[[Replies], _T], fail: Callable[[Exception], Any] | None = None
    ) -> _T:
        """Finish the started commands; they stay pending until ``take`` has returned."""
        try:
            replies = self._wait(self._commands)
        except Exception as error:
            if fail is not None:
                fail(error)
            raise
        taken = take(replies)
        self.settle()
        return taken

    def _wait(self, requests: Mapping[int, Request]) -> Replies:
        """Wait for these requests and return their results in group order."""
        results: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for k, driver in self._local_first:
            if k in requests:
                tag, submit = requests[k]
                if driver.tag != tag:  # interrupted before submission
                    submit()
                try:
                    results[k] = driver.result()
                except Exception as error:
                    failures[k] = error
        self.check_not_closed(next(iter(failures.values()), None))
        if failures:
            outcomes = [(k, each) for k, each in results.items() if isinstance(each, Outcome)]
            self._info_collector.absorb(outcomes)
            self.settle()
            fatal = [k for k, error in failures.items() if is_fatal(error)]
            raise failures[min(fatal or failures)]
        return sorted(results.items())

    def settle(self) -> None:
        """Mark a pending step or pending commands as processed."""
        self.pending, self._commands = _NOTHING, {}

    def discard_commands(self) -> None:
        """Discard commands whose results were not processed because of an interrupt."""
        while self._commands:
            k = max(self._commands)
            outcome = self.drivers[k].discard()
            if isinstance(outcome, Outcome):
                self._info_collector.absorb([(k, outcome)])
            del self._commands[k]
        self.settle()

    def ready_by(self, deadline: float) -> bool:
        """Wait for all pending groups; return False if the deadline passes first."""
        if self.stepping and self.common is not None and self.common.tag == self._tag:
            self.common.hand_over()
        for k in range(len(self.drivers)) if self.stepping else self._commands:
            if not self.drivers[k].runs_in_result:
                try:
                    self.drivers[k].result(deadline)
                except TimeoutError:
                    return False
                except Exception:
                    continue  # raised again when the results are requested
        return True

    # -- asynchronous stepping --------------------------------------------------------

    def send_commands(self, env_ids: NDArray[np.intp], packed: Mapping[int, Any]) -> None:
        """Mark environments as sent and submit commands to their groups."""
        self._send(env_ids, self._make_requests(packed))

    def send_step(
        self, env_ids: NDArray[np.intp], groups: Iterable[int], actions: Mapping[int, Any]
    ) -> None:
        """Mark environments as sent and start a step of the groups that have all their actions."""
        if self._before_step is not None:
            self._before_step()
        tag, drivers = self._tag + 1, self.drivers
        self._tag = tag
        requests = {k: (tag, partial(drivers[k].submit_step, tag, actions.get(k))) for k in groups}
        self._send(env_ids, requests)

    def _send(self, env_ids: NDArray[np.intp], submissions: Mapping[int, Request]) -> None:
        self.pending = _SENT
        self.in_flight.add(env_ids, submissions)
        if self._after_submit is not None:
            self._after_submit()

    def receive(self, env_ids: NDArray[np.intp]) -> None:
        if not self.in_flight.receive(env_ids):
            self.pending = _NOTHING

    def recall(self, fail: Callable[[], Any]) -> None:
        """Wait for asynchronous requests and discard the results, except for action masks."""
        in_flight = self.in_flight
        if in_flight.any:
            try:
                outcomes = dict(self._wait(in_flight.requests))
            except Exception:
                fail()
                raise
            if outcomes:  # before they are cleared: groups report new columns only once
                self._info_collector.infos(outcomes.items(), in_flight.envs_of(outcomes))
            self.clear()

    def clear(self) -> None:
        """Mark all requests as processed, including asynchronous ones."""
        self.in_flight.clear()
        self.settle()

    def replace_drivers(self, other: Any) -> None:
        """Clear all requests; replace every driver by ``other``, even for calls already running."""
        self.common = None
        self.drivers[:] = [other] * len(self.drivers)
        self._local_first[:] = enumerate(self.drivers)
        self.clear()

    # -- checks -----------------------------------------------------------------------

    def close(self) -> None:
        """Settle the pending step or commands; a call that is waiting for a reply raises."""
        self.closed = True
        self.settle()

    def check_not_closed(self, cause: Exception | None = None) -> None:
        """Raise if a signal handler or another thread closed the groups during this call."""
        if self.closed:
            text = "the vectorized environment was closed during this call"
            raise ClosedVecEnvError(text) from cause

    def check_idle(self, what: str) -> None:
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: finish it with step_wait first"
            )
        if self.in_flight.any:
            (envs,) = self.in_flight.envs.nonzero()
            raise AlreadySteppingError(
                f"{what} was called while a result of {name_envs(envs.tolist())} is outstanding: "
                "receive it with recv first"
            )
        if self.pending is _SENT:  # left by an interrupt
            self.pending = _NOTHING

    def check_stepping(self) -> None:
        if self.pending is not _STEP:
            raise NotSteppingError("step_wait was called without a pending step_async")


def values_of(replies: Replies) -> list[Any]:
    """Return the values of all environments, in the order of the groups."""
    return [value for _, reply in replies for value in reply]


def is_fatal(error: BaseException) -> bool:
    """Return whether this error makes further requests impossible."""
    return isinstance(error, WorkerDiedError | WorkerTimeoutError) and not error.restarted


def state_unknown_after(error: Exception) -> bool:
    """Return whether an error in a state operation leaves environments in an unknown state."""
    return is_fatal(error) or (isinstance(error, EnvError) and not isinstance(error, StateError))
