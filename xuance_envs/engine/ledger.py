"""Who was asked for what, and who owes an answer.

Groups of environments are asked in one of three ways at a time: all of them for a step, some for a
command, or each for a step or a reset of its own when its environments have been sent. An interrupt
(:class:`KeyboardInterrupt`) may come between any two operations of the interpreter. So what is
noted is noted before it is asked, in assignments without a call between them, and every wait can be
repeated: who has not been asked is asked then, and an answer is given as often as it is wanted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import OK, Outcome
from xuance_envs.engine.polling import FdPoller, Poller
from xuance_envs.errors import (
    AlreadySteppingError,
    NotSteppingError,
    WorkerDiedError,
    WorkerTimeoutError,
    name_envs,
)

__all__ = ["Ledger", "is_fatal"]

_NO_WAIT = 0.0

_PendingRequest = tuple[int, Callable[[], None]]
"""The number a group is asked under, and what asks it."""

AbsorbOutcomes = Callable[[Iterable[tuple[int, Outcome]]], None]
"""Takes in of outcomes nobody wants what groups tell only once."""


class Ledger:
    """What the groups of one vector environment have been asked for."""

    def __init__(
        self,
        drivers: Sequence[Driver],
        poller: Poller | None = None,
        before_step: Callable[[], None] | None = None,
        after_submit: Callable[[], None] | None = None,
    ) -> None:
        self.drivers = list(drivers)
        self._before_step = before_step
        self._after_submit = after_submit
        self.stepping = False
        self.pending: dict[int, _PendingRequest] = {}
        self.in_flight = np.zeros(drivers[-1].hi, np.bool_)
        self.any_in_flight = False
        self.failed_group = -1
        self._tag = 0
        # A group in this process works only when it is asked for its result: before waiting.
        self._local_first = sorted(enumerate(drivers), key=lambda item: not item[1].is_local)
        self._local = [k for k, driver in enumerate(drivers) if driver.is_local]
        self._all_asked = True
        self._actions: Mapping[int, Any] = {}
        self._poller = FdPoller(self.drivers, 0.0) if poller is None else poller
        self._envs = [np.arange(driver.lo, driver.hi) for driver in drivers]
        self._firsts = [driver.lo for driver in drivers]
        # Of what has been sent: the groups nobody has waited for yet, what came of those that are
        # done and not received yet, and those that may not take any time.
        self._unwatched: dict[int, _PendingRequest] = {}
        self._ready: dict[int, Any] = {}
        self._interrupted = False
        self._with_deadline: set[int] = set()

    # -- a step of all ----------------------------------------------------------------

    def start_step(self, actions: Mapping[int, Any]) -> None:
        """Asks every group for a step."""
        if self._before_step is not None:
            self._before_step()
        self._actions = actions
        self._tag += 1
        self._all_asked = False
        self.stepping = True
        tag = self._tag
        if actions:
            for k, driver in enumerate(self.drivers):
                driver.submit_step(tag, actions.get(k))
        else:
            for driver in self.drivers:
                driver.submit_step(tag, None)
        self._all_asked = True
        if self._after_submit is not None:
            self._after_submit()

    def finish_step(self) -> list[tuple[int, Outcome]]:
        """Waits for the step; by group, what it left besides the arrays, if anything.

        It stays pending until ``stepping`` is unset.
        """
        if not self._all_asked:  # an interrupt came before they were
            for k, driver in enumerate(self.drivers):
                if driver.tag != self._tag:
                    driver.submit_step(self._tag, self._actions.get(k))
        outcomes = []
        for k, driver in self._local_first:
            outcome = driver.result()
            if outcome is not OK:
                outcomes.append((k, outcome))
        return outcomes

    # -- commands ---------------------------------------------------------------------

    def start(self, packed: Mapping[int, Any]) -> None:
        """Asks some groups for a command."""
        self.pending = self._make_requests(packed)
        for _, submit in self.pending.values():
            submit()
        if self._after_submit is not None:
            self._after_submit()

    def _make_requests(self, packed: Mapping[int, Any]) -> dict[int, _PendingRequest]:
        tag = self._tag = self._tag + 1
        return {k: (tag, partial(self.drivers[k].submit, tag, packed[k])) for k in packed}

    def finish(self, absorb: AbsorbOutcomes | None = None) -> list[tuple[int, Any]]:
        """Waits for the groups that owe an answer; by group, in their order, what came of it.

        They owe it until :meth:`discard_pending` or :meth:`clear_pending` is called.
        """
        results: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for k, driver in self._local_first:
            if k in self.pending:
                tag, submit = self.pending[k]
                if driver.tag != tag:  # an interrupt came before it was asked
                    submit()
                try:
                    results[k] = driver.result()
                except Exception as error:
                    failures[k] = error
        if failures:
            self.pending = {}
            if absorb is not None:
                absorb([(k, each) for k, each in results.items() if isinstance(each, Outcome)])
            fatal = [k for k, error in failures.items() if is_fatal(error)]
            raise failures[min(fatal or failures)]
        return sorted(results.items())

    def clear_pending(self) -> None:
        """Takes note that the answers have been taken in."""
        self.pending = {}

    def discard_pending(self, absorb: AbsorbOutcomes) -> None:
        """Lets go of commands whose answers an interrupt kept from being taken in."""
        while self.pending:
            k = max(self.pending)
            outcome = self.drivers[k].discard()
            if isinstance(outcome, Outcome):
                absorb([(k, outcome)])
            del self.pending[k]

    def ready_by(self, deadline: float) -> bool:
        """Waits until what was started is finished, or until a time; tells which it was."""
        for k in range(len(self.drivers)) if self.stepping else self.pending:
            if not self.drivers[k].is_local:
                try:
                    self.drivers[k].result(deadline)
                except TimeoutError:
                    return False
                except Exception:
                    continue  # is raised when it is finished
        return True

    # -- some at a time ---------------------------------------------------------------

    def groups_completed_by(self, env_ids: NDArray[np.intp]) -> list[int]:
        """The groups that have all their actions once these environments are sent, too."""
        already_sent = self.in_flight[env_ids]
        if already_sent.any():
            raise AlreadySteppingError(
                f"send: {name_envs(env_ids[already_sent].tolist())} have been sent before and not "
                "received since: receive them with recv first"
            )
        sent = self.in_flight.copy()
        sent[env_ids] = True
        mine = np.zeros_like(sent)
        mine[env_ids] = True
        complete = np.logical_and.reduceat(sent, self._firsts)
        touched = np.logical_or.reduceat(mine, self._firsts)
        return list(np.flatnonzero(complete & touched).tolist())

    def send_commands(self, env_ids: NDArray[np.intp], packed: Mapping[int, Any]) -> None:
        """Sends some environments, with a command for their groups, which owe no answer."""
        self._send(env_ids, self._make_requests(packed))

    def send_step(
        self, env_ids: NDArray[np.intp], groups: Iterable[int], actions: Mapping[int, Any]
    ) -> None:
        """Sends some environments, to be stepped."""
        if self._before_step is not None:
            self._before_step()
        tag = self._tag = self._tag + 1
        submissions = {
            k: (tag, partial(self.drivers[k].submit_step, tag, actions.get(k))) for k in groups
        }
        self._send(env_ids, submissions)

    def _send(self, env_ids: NDArray[np.intp], submissions: Mapping[int, _PendingRequest]) -> None:
        """Takes note that environments are sent, and starts groups."""
        pending, new = {**self.pending, **submissions}, {**self._unwatched, **submissions}
        in_flight = self.in_flight.copy()
        in_flight[env_ids] = True
        interrupted = self._interrupted
        # No call in between, so that an interrupt finds either all of it or nothing. One that comes
        # while groups are asked may leave half a request, which asking for its result mends.
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
        """Waits until so many environments have answered, or until the time is over."""
        deadline = None if timeout is None else monotonic() + timeout
        # Groups in this process work only here: one that others were quicker than comes first now.
        overtaken = [k for k in self._local if k in self.pending and k not in self._unwatched]
        for k, (tag, submit) in self._unwatched.items():
            if self.drivers[k].tag != tag:  # an interrupt came before it was asked
                submit()
            self._watch(k)
        self._unwatched = {}
        if self._interrupted:  # an answer may have been read that nobody took note of
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
        """Takes note that the environments of the groups that are ready have been received."""
        pending = {k: request for k, request in self.pending.items() if k not in self._ready}
        in_flight, any_in_flight = _without(self.in_flight, env_ids)
        # As in :meth:`_send`.
        self.pending, self._ready, self._interrupted = pending, {}, False
        self.in_flight, self.any_in_flight = in_flight, any_in_flight

    def drain(self) -> dict[int, Any]:
        """Waits for every group at work, and forgets what has been sent."""
        results = dict(self.finish())
        in_flight = np.zeros_like(self.in_flight)
        self.pending, self._unwatched, self._ready = {}, {}, {}
        self._interrupted = self.any_in_flight = False
        self.in_flight = in_flight
        return results

    def envs_to_wait_for(self, min_envs: int | None) -> int:
        """How many environments to wait for, if so many can answer."""
        started = len(self.stepping_envs())
        wanted = 1 if min_envs is None else operator.index(min_envs)
        if not started:
            raise NotSteppingError(
                f"recv was called, but no environment is stepping{self._waiting_hint()}"
            )
        if not 1 <= wanted <= started:
            raise ValueError(
                f"min_envs: expected from 1 to {started}, for so many environments are "
                f"stepping, got {min_envs}{self._waiting_hint()}"
            )
        return wanted

    def stepping_envs(self) -> list[int]:
        """The environments that are stepping."""
        return [env for k in sorted(self.pending) for env in self._envs[k].tolist()]

    def envs_of(self, groups: Iterable[int]) -> NDArray[np.intp]:
        """The environments of some groups, in the groups' order."""
        envs = [self._envs[k] for k in groups]
        return envs[0].copy() if len(envs) == 1 else np.concatenate(envs)

    def _waiting_hint(self) -> str:
        held = self.in_flight.copy()
        held[self.stepping_envs()] = False
        if not held.any():
            return ""
        return (
            f"; {name_envs(np.flatnonzero(held).tolist())} have been sent, and wait for the "
            "actions of the others that share their worker"
        )

    def _busy_groups(self) -> set[int]:
        return self.pending.keys() - self._ready.keys()

    def _reply_deadlines(self) -> dict[int, float]:
        """By when each group at work that may not take any time must have answered."""
        deadlines = {
            k: self.drivers[k].reply_deadline for k in self._with_deadline & self._busy_groups()
        }
        return {
            k: reply_deadline
            for k, reply_deadline in deadlines.items()
            if reply_deadline is not None
        }

    def _collect(self, groups: Iterable[int]) -> None:
        """Takes the answers of those groups that have one."""
        for k in groups:
            if k in self.pending and k not in self._ready and k not in self._local:
                try:
                    self._ready[k] = self._take_reply(k, _NO_WAIT)
                except TimeoutError:
                    self._watch(k)

    def _take_reply(self, k: int, deadline: float | None = None) -> Any:
        """What a group answers; one that raises has done so once, and owes nothing any more."""
        try:
            return self.drivers[k].result(deadline)
        except TimeoutError:
            raise
        except Exception:
            pending = {other: request for other, request in self.pending.items() if other != k}
            in_flight, any_in_flight = _without(self.in_flight, self._envs[k])
            # As in :meth:`_send`.
            self.pending, self.failed_group = pending, k
            self.in_flight, self.any_in_flight = in_flight, any_in_flight
            raise

    def _or_timed_out(self, groups: set[int]) -> set[int]:
        """Groups that may have answered; if there are none, those that should have by now."""
        if groups or not self._with_deadline:
            return groups
        now = monotonic()
        return {k for k, reply_deadline in self._reply_deadlines().items() if reply_deadline < now}

    def _watch(self, k: int) -> None:
        if self.drivers[k].reply_deadline is not None:
            self._with_deadline.add(k)
        self._poller.watch(k)

    def replace_drivers(self, other: Any) -> None:
        """Forgets everything, and has another object in the place of each driver.

        In place, so that whatever is under way meets it, too.
        """
        self.drivers[:] = [other] * len(self.drivers)
        self._local_first[:] = enumerate(self.drivers)
        self.pending = {}
        self.stepping = self.any_in_flight = False

    # -- what may be asked now --------------------------------------------------------

    def check_idle(self, what: str) -> None:
        """Raises unless nothing is pending."""
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: finish it with step_wait first"
            )
        if self.any_in_flight:
            (envs,) = self.in_flight.nonzero()
            raise AlreadySteppingError(
                f"{what} was called while {name_envs(envs.tolist())} have been sent and not "
                "received: receive them with recv first"
            )

    def check_not_stepping(self, what: str) -> None:
        """Raises if a step of all is pending."""
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step_async is pending: finish it with step_wait "
                "first; send and recv are another way of stepping"
            )


def _without(
    in_flight: NDArray[np.bool_], received: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], bool]:
    """Which environments are in flight, once some are no more, and whether any is."""
    still = in_flight.copy()
    still[received] = False
    return still, bool(np.count_nonzero(still))


def is_fatal(error: BaseException) -> bool:
    """Whether after an error in a command nothing can be asked any more."""
    return isinstance(error, WorkerDiedError | WorkerTimeoutError) and not error.restarted
