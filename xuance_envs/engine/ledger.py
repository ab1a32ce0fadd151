"""Ledger of requests to groups and their outstanding replies.

There is one kind of request at a time: a step of all groups, a command to some groups, or
asynchronous requests to single groups. A KeyboardInterrupt may arrive between any two
bytecodes. Requests are therefore recorded before they are submitted, by assignments without
calls. Every wait can be repeated: it submits the requests that have not been submitted yet,
and results can be read again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import OK, Outcome
from xuance_envs.engine.info_collector import InfoCollector
from xuance_envs.engine.polling import FdPoller, Poller
from xuance_envs.errors import (
    AlreadySteppingError,
    NotSteppingError,
    WorkerDiedError,
    WorkerTimeoutError,
    name_envs,
)

_NO_WAIT = 0.0

_PendingRequest = tuple[int, Callable[[], None]]
"""Tag of a request, and the function that submits it."""

Replies = Sequence[tuple[int, Any]]
"""Groups and their replies to a command."""

_T = TypeVar("_T")


class Ledger:
    """Pending requests of one vectorized environment."""

    def __init__(
        self,
        drivers: list[Driver],
        info_collector: InfoCollector,
        poller: Poller | None = None,
        before_step: Callable[[], None] | None = None,
        after_submit: Callable[[], None] | None = None,
    ) -> None:
        self.drivers = drivers
        self._info_collector = info_collector
        self._before_step = before_step
        self._after_submit = after_submit
        self.stepping = False
        self.pending: dict[int, _PendingRequest] = {}
        self.in_flight = np.zeros(drivers[-1].hi, np.bool_)
        self.any_in_flight = False
        self.failed_group = -1
        self._tag = 0
        # Local groups run only when their results are requested, so before waiting for workers.
        self._local_first = sorted(enumerate(drivers), key=lambda item: not item[1].is_local)
        self._local = [k for k, driver in enumerate(drivers) if driver.is_local]
        self._all_submitted = True
        self._actions: Mapping[int, Any] = {}
        self._poller = FdPoller(self.drivers, 0.0) if poller is None else poller
        self._envs = [np.arange(driver.lo, driver.hi) for driver in drivers]
        self._firsts = [driver.lo for driver in drivers]
        # Asynchronous requests that the poller does not watch yet, and results not yet received.
        self._unwatched: dict[int, _PendingRequest] = {}
        self._ready: dict[int, Any] = {}
        self._interrupted = False
        self._with_deadline: set[int] = set()

    # -- synchronous step -------------------------------------------------------------

    def start_step(self, actions: Mapping[int, Any]) -> None:
        if self._before_step is not None:
            self._before_step()
        self._actions = actions
        self._tag += 1
        self._all_submitted = False
        self.stepping = True
        tag = self._tag
        if actions:
            for k, driver in enumerate(self.drivers):
                driver.submit_step(tag, actions.get(k))
        else:
            for driver in self.drivers:
                driver.submit_step(tag, None)
        self._all_submitted = True
        if self._after_submit is not None:
            self._after_submit()

    def finish_step(self, fail: Callable[[], Any]) -> StepInfos:
        """Wait for the step and return its infos; if a group raises, call ``fail``.

        The step stays pending until :meth:`settle`, unless it fails.
        """
        if not self._all_submitted:  # interrupted during submission
            for k, driver in enumerate(self.drivers):
                if driver.tag != self._tag:
                    driver.submit_step(self._tag, self._actions.get(k))
        outcomes = []
        try:
            for k, driver in self._local_first:
                outcome = driver.result()
                if outcome is not OK:
                    outcomes.append((k, outcome))
        except Exception:
            self.stepping = False
            fail()
            raise
        return self._info_collector.infos(outcomes)

    # -- commands ---------------------------------------------------------------------

    def start(self, packed: Mapping[int, Any]) -> None:
        self.pending = self._make_requests(packed)
        for _, submit in self.pending.values():
            submit()
        if self._after_submit is not None:
            self._after_submit()

    def _make_requests(self, packed: Mapping[int, Any]) -> dict[int, _PendingRequest]:
        tag = self._tag = self._tag + 1
        return {k: (tag, partial(self.drivers[k].submit, tag, packed[k])) for k in packed}

    def command(
        self,
        packed: Mapping[int, Any],
        take: Callable[[Replies], _T],
        fail: Callable[[], Any] | None = None,
    ) -> _T:
        """Run packed commands and return ``take(replies)``; if a group raises, call ``fail``."""
        self.start(packed)
        return self.finish(take, fail)

    def finish(self, take: Callable[[Replies], _T], fail: Callable[[], Any] | None = None) -> _T:
        """Finish the started commands; they stay pending until ``take`` has returned."""
        try:
            replies = self._wait()
        except Exception:
            if fail is not None:
                fail()
            raise
        taken = take(replies)
        self.settle()
        return taken

    def _wait(self) -> Replies:
        """Wait for all pending groups and return their results in group order."""
        results: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for k, driver in self._local_first:
            if k in self.pending:
                tag, submit = self.pending[k]
                if driver.tag != tag:  # interrupted before submission
                    submit()
                try:
                    results[k] = driver.result()
                except Exception as error:
                    failures[k] = error
        if failures:
            self.pending = {}
            outcomes = [(k, each) for k, each in results.items() if isinstance(each, Outcome)]
            self._info_collector.absorb(outcomes)
            fatal = [k for k, error in failures.items() if is_fatal(error)]
            raise failures[min(fatal or failures)]
        return sorted(results.items())

    def settle(self) -> None:
        """Mark the results of the pending step or commands as processed."""
        self.pending, self.stepping = {}, False

    def discard_pending(self) -> None:
        """Discard commands whose results were not processed because of an interrupt."""
        while self.pending:
            k = max(self.pending)
            outcome = self.drivers[k].discard()
            if isinstance(outcome, Outcome):
                self._info_collector.absorb([(k, outcome)])
            del self.pending[k]

    def ready_by(self, deadline: float) -> bool:
        """Wait for all pending groups; return False if the deadline passes first."""
        for k in range(len(self.drivers)) if self.stepping else self.pending:
            if not self.drivers[k].is_local:
                try:
                    self.drivers[k].result(deadline)
                except TimeoutError:
                    return False
                except Exception:
                    continue  # raised again when the results are requested
        return True

    # -- asynchronous stepping --------------------------------------------------------

    def groups_completed_by(self, env_ids: NDArray[np.intp]) -> list[int]:
        """Return the groups that have all their actions once these environments are sent."""
        already_sent = self.in_flight[env_ids]
        if already_sent.any():
            raise AlreadySteppingError(
                f"send: a result of {name_envs(env_ids[already_sent].tolist())} is still "
                "outstanding: receive it with recv first"
            )
        sent = self.in_flight.copy()
        sent[env_ids] = True
        newly_sent = np.zeros_like(sent)
        newly_sent[env_ids] = True
        complete = np.logical_and.reduceat(sent, self._firsts)
        touched = np.logical_or.reduceat(newly_sent, self._firsts)
        return list(np.flatnonzero(complete & touched).tolist())

    def send_commands(self, env_ids: NDArray[np.intp], packed: Mapping[int, Any]) -> None:
        """Mark environments as sent and submit commands to their groups."""
        self._send(env_ids, self._make_requests(packed))

    def send_step(
        self, env_ids: NDArray[np.intp], groups: Iterable[int], actions: Mapping[int, Any]
    ) -> None:
        """Mark environments as sent and start a step of the groups that have all their actions."""
        if self._before_step is not None:
            self._before_step()
        tag = self._tag = self._tag + 1
        submissions = {
            k: (tag, partial(self.drivers[k].submit_step, tag, actions.get(k))) for k in groups
        }
        self._send(env_ids, submissions)

    def _send(self, env_ids: NDArray[np.intp], submissions: Mapping[int, _PendingRequest]) -> None:
        pending, new = {**self.pending, **submissions}, {**self._unwatched, **submissions}
        in_flight = self.in_flight.copy()
        in_flight[env_ids] = True
        interrupted = self._interrupted
        # No call in between, so that an interrupt finds either all of these updated or none. It may
        # leave half a request, which is completed when its result is requested.
        self.pending, self._unwatched, self.in_flight, self.any_in_flight = (
            pending,
            new,
            in_flight,
            True,
        )
        self._interrupted = True
        for _, submit in submissions.values():
            submit()
        self._interrupted = interrupted
        if self._after_submit is not None:
            self._after_submit()

    def wait(self, wanted: int, timeout: float | None) -> dict[int, Any]:
        """Wait until enough environments are ready or the timeout expires; return the results."""
        deadline = None if timeout is None else monotonic() + timeout
        # Local groups run only here. Those started but skipped by earlier calls come first.
        overtaken = [k for k in self._local if k in self.pending and k not in self._unwatched]
        for k, (tag, submit) in self._unwatched.items():
            if self.drivers[k].tag != tag:  # interrupted before submission
                submit()
            self._watch(k)
        self._unwatched = {}
        if self._interrupted:  # a reply may have been read but not stored
            self._collect(self.pending)
        self._interrupted = True
        ready, poller = self._ready, self._poller
        for k in overtaken:
            if k not in ready:
                ready[k] = self._take_reply(k)
        if ready or self._local or deadline is not None:
            self._collect(self._or_timed_out(poller.poll(self._busy_groups())))
        while sum([len(self._envs[k]) for k in ready]) < wanted:
            busy = self._busy_groups()
            local = next((k for k in self._local if k in busy), None)
            if local is not None:
                ready[local] = self._take_reply(local)
                self._collect(self._or_timed_out(poller.poll(self._busy_groups())))
                continue
            if deadline is not None and monotonic() >= deadline:
                break
            until = deadline
            if self._with_deadline:
                deadlines = [*self._reply_deadlines().values(), deadline]
                until = min(
                    [reply_deadline for reply_deadline in deadlines if reply_deadline is not None],
                    default=None,
                )
            self._collect(self._or_timed_out(poller.wait(busy, until)))
        return dict(sorted(ready.items()))

    def receive(self, env_ids: NDArray[np.intp]) -> None:
        """Mark the environments of all ready groups as received."""
        pending = {k: request for k, request in self.pending.items() if k not in self._ready}
        in_flight, any_in_flight = _without(self.in_flight, env_ids)
        # No call in between, as in _send.
        self.pending, self._ready, self._interrupted = pending, {}, False
        self.in_flight, self.any_in_flight = in_flight, any_in_flight

    def recall(self, fail: Callable[[], Any]) -> None:
        """Wait for asynchronous requests and discard the results, except for action masks."""
        if self.any_in_flight:
            outcomes = self.finish(dict, fail)
            self.discard_requests()
            if outcomes:
                self._info_collector.infos(outcomes.items(), self.envs_of(outcomes))

    def discard_requests(self) -> None:
        """Mark all requests as processed, asynchronous ones too."""
        in_flight = np.zeros_like(self.in_flight)
        self.pending, self._unwatched, self._ready = {}, {}, {}
        self._interrupted = self.any_in_flight = self.stepping = False
        self.in_flight = in_flight

    def envs_to_wait_for(self, min_envs: int | None) -> int:
        """Validate ``min_envs`` and return the number of environments to wait for."""
        started = len(self.stepping_envs())
        wanted = 1 if min_envs is None else operator.index(min_envs)
        if not started:
            raise NotSteppingError(
                f"recv was called, but no environment is stepping{self._waiting_hint()}"
            )
        if not 1 <= wanted <= started:
            raise ValueError(
                f"min_envs: expected 1 to {started}, the number of stepping environments, "
                f"got {min_envs}{self._waiting_hint()}"
            )
        return wanted

    def stepping_envs(self) -> list[int]:
        return [env for k in sorted(self.pending) for env in self._envs[k].tolist()]

    def envs_of(self, groups: Iterable[int]) -> NDArray[np.intp]:
        envs = [self._envs[k] for k in groups]
        return envs[0].copy() if len(envs) == 1 else np.concatenate(envs)

    def _waiting_hint(self) -> str:
        held = self.in_flight.copy()
        held[self.stepping_envs()] = False
        if not held.any():
            return ""
        return (
            f"; actions for {name_envs(np.flatnonzero(held).tolist())} were sent, but other "
            "environments of the same worker still need theirs"
        )

    def _busy_groups(self) -> set[int]:
        return self.pending.keys() - self._ready.keys()

    def _reply_deadlines(self) -> dict[int, float]:
        """Return the deadline of each busy group that has one."""
        deadlines = {
            k: self.drivers[k].reply_deadline for k in self._with_deadline & self._busy_groups()
        }
        return {
            k: reply_deadline
            for k, reply_deadline in deadlines.items()
            if reply_deadline is not None
        }

    def _collect(self, groups: Iterable[int]) -> None:
        """Collect the available results of these groups."""
        for k in groups:
            if k in self.pending and k not in self._ready and k not in self._local:
                try:
                    self._ready[k] = self._take_reply(k, _NO_WAIT)
                except TimeoutError:
                    self._watch(k)

    def _take_reply(self, k: int, deadline: float | None = None) -> Any:
        """Return a group's result; a group that raises is no longer pending."""
        try:
            return self.drivers[k].result(deadline)
        except TimeoutError:
            raise
        except Exception:
            pending = {other: request for other, request in self.pending.items() if other != k}
            in_flight, any_in_flight = _without(self.in_flight, self._envs[k])
            # No call in between, as in _send.
            self.pending, self.failed_group = pending, k
            self.in_flight, self.any_in_flight = in_flight, any_in_flight
            raise

    def _or_timed_out(self, groups: set[int]) -> set[int]:
        """Return the given groups, or those past their deadline if none is given."""
        if groups or not self._with_deadline:
            return groups
        now = monotonic()
        return {k for k, reply_deadline in self._reply_deadlines().items() if reply_deadline < now}

    def _watch(self, k: int) -> None:
        if self.drivers[k].reply_deadline is not None:
            self._with_deadline.add(k)
        self._poller.watch(k)

    def replace_drivers(self, other: Any) -> None:
        """Clear all requests and replace the drivers, even in calls that are in progress."""
        self.drivers[:] = [other] * len(self.drivers)
        self._local_first[:] = enumerate(self.drivers)
        self.discard_requests()

    # -- checks -----------------------------------------------------------------------

    def check_idle(self, what: str) -> None:
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: finish it with step_wait first"
            )
        if self.any_in_flight:
            (envs,) = self.in_flight.nonzero()
            raise AlreadySteppingError(
                f"{what} was called while a result of {name_envs(envs.tolist())} is outstanding: "
                "receive it with recv first"
            )

    def check_not_stepping(self, what: str) -> None:
        """Raise if a step started by ``step_async`` is pending."""
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step_async is pending: finish it with step_wait "
                "first. step_async/step_wait and send/recv cannot be mixed within a step"
            )


def values_of(replies: Replies) -> list[Any]:
    """Return the values of all environments, in the order of the groups."""
    return [value for _, reply in replies for value in reply]


def _without(
    in_flight: NDArray[np.bool_], received: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], bool]:
    """Return the mask of environments still in flight, and whether there are any."""
    still = in_flight.copy()
    still[received] = False
    return still, bool(np.count_nonzero(still))


def is_fatal(error: BaseException) -> bool:
    """Return whether this error makes further requests impossible."""
    return isinstance(error, WorkerDiedError | WorkerTimeoutError) and not error.restarted
