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
from xuance_envs.engine.group.outcome import DONE, Outcome
from xuance_envs.engine.waiting import PolledWaiter, Waiter
from xuance_envs.errors import (
    AlreadySteppingError,
    NotSteppingError,
    WorkerDiedError,
    WorkerTimeoutError,
    name_envs,
)

__all__ = ["Ledger", "ends_all"]

_AT_ONCE = 0.0

_Asking = tuple[int, Callable[[], None]]
"""The number a group is asked under, and what asks it."""

Forget = Callable[[Iterable[tuple[int, Outcome]]], None]
"""Takes in of outcomes nobody wants what groups tell only once."""


class Ledger:
    """What the groups of one vector environment have been asked for.

    Args:
        drivers: the groups, which go by their places.
        waiter: tells which of them may have answered; None polls their descriptors.
        before_step: is called before each step; None for nothing.
        asked: is called when some have been asked for something; None for nothing.

    Attributes:
        stepping (bool): whether a step of all has been asked for that nobody has taken in.
        owing (dict): the groups that owe an answer to something else, and how they were asked.
        in_flight (ndarray): ``(num_envs,)`` bool: the environments that have been sent and not
            been received since.
        sending (bool): whether there are any.
        failed (int): the group whose error :meth:`wait` raised last, which owes nothing any more.
    """

    def __init__(
        self,
        drivers: Sequence[Driver],
        waiter: Waiter | None = None,
        before_step: Callable[[], None] | None = None,
        asked: Callable[[], None] | None = None,
    ) -> None:
        self.drivers = list(drivers)
        self._before_step = before_step
        self._asked = asked
        self.stepping = False
        self.owing: dict[int, _Asking] = {}
        self.in_flight = np.zeros(drivers[-1].hi, np.bool_)
        self.sending = False
        self.failed = -1
        self._tag = 0
        # A group in this process works only when it is asked for its result: before waiting.
        self._order = sorted(enumerate(drivers), key=lambda item: not item[1].is_local)
        self._local = [k for k, driver in enumerate(drivers) if driver.is_local]
        self._all_asked = True
        self._actions: Mapping[int, Any] = {}
        self._waiter = PolledWaiter(self.drivers, 0.0) if waiter is None else waiter
        self._envs = [np.arange(driver.lo, driver.hi) for driver in drivers]
        self._firsts = [driver.lo for driver in drivers]
        # Of what has been sent: the groups nobody has waited for yet, what came of those that are
        # done and not received yet, and those that may not take any time.
        self._new: dict[int, _Asking] = {}
        self._ready: dict[int, Any] = {}
        self._interrupted = False
        self._limited: set[int] = set()

    # -- a step of all ----------------------------------------------------------------

    def start_step(self, actions: Mapping[int, Any]) -> None:
        """Asks every group for a step.

        Args:
            actions: by group, those that had to be packed.
        """
        if self._before_step is not None:
            self._before_step()
        self._actions = actions
        self._tag += 1
        self._all_asked = False
        self.stepping = True
        tag = self._tag
        if actions:
            for k, driver in enumerate(self.drivers):
                driver.ask_step(tag, actions.get(k))
        else:
            for driver in self.drivers:
                driver.ask_step(tag, None)
        self._all_asked = True
        if self._asked is not None:
            self._asked()

    def finish_step(self) -> list[tuple[int, Outcome]]:
        """Waits for the step; by group, what it left besides the arrays, if anything.

        It stays pending until ``stepping`` is unset.

        Raises:
            EnvError: an environment failed.
            WorkerDiedError: the process around a group ended.
        """
        if not self._all_asked:  # an interrupt came before they were
            for k, driver in enumerate(self.drivers):
                if driver.tag != self._tag:
                    driver.ask_step(self._tag, self._actions.get(k))
        outcomes = []
        for k, driver in self._order:
            outcome = driver.result()
            if outcome is not DONE:
                outcomes.append((k, outcome))
        return outcomes

    # -- commands ---------------------------------------------------------------------

    def start(self, packed: Mapping[int, Any]) -> None:
        """Asks some groups for a command.

        Args:
            packed: by group, what its driver packed.
        """
        self.owing = self._commands(packed)
        for _, ask in self.owing.values():
            ask()
        if self._asked is not None:
            self._asked()

    def _commands(self, packed: Mapping[int, Any]) -> dict[int, _Asking]:
        tag = self._tag = self._tag + 1
        return {k: (tag, partial(self.drivers[k].ask, tag, packed[k])) for k in packed}

    def finish(self, forget: Forget | None = None) -> list[tuple[int, Any]]:
        """Waits for the groups that owe an answer; by group, in their order, what came of it.

        They owe it until :meth:`settle` or :meth:`take` is called.

        Args:
            forget: if one fails, takes in of the others' outcomes what groups tell only once; None
                where there are no outcomes, or nothing is asked any more after a failure.

        Raises:
            Exception: what the first one that failed raised; the others have finished by then.
        """
        results: dict[int, Any] = {}
        failures: dict[int, Exception] = {}
        for k, driver in self._order:
            if k in self.owing:
                tag, ask = self.owing[k]
                if driver.tag != tag:  # an interrupt came before it was asked
                    ask()
                try:
                    results[k] = driver.result()
                except Exception as error:
                    failures[k] = error
        if failures:
            self.owing = {}
            if forget is not None:
                forget([(k, each) for k, each in results.items() if isinstance(each, Outcome)])
            fatal = [k for k, error in failures.items() if ends_all(error)]
            raise failures[min(fatal or failures)]
        return sorted(results.items())

    def take(self) -> None:
        """Takes note that the answers have been taken in."""
        self.owing = {}

    def settle(self, forget: Forget) -> None:
        """Lets go of commands whose answers an interrupt kept from being taken in.

        Args:
            forget: takes in of outcomes nobody wants what groups tell only once.
        """
        while self.owing:
            k = max(self.owing)
            outcome = self.drivers[k].discard()
            if isinstance(outcome, Outcome):
                forget([(k, outcome)])
            del self.owing[k]

    def ready_by(self, deadline: float) -> bool:
        """Waits until what was started is finished, or until a time; tells which it was."""
        for k in range(len(self.drivers)) if self.stepping else self.owing:
            if not self.drivers[k].is_local:
                try:
                    self.drivers[k].result(deadline)
                except TimeoutError:
                    return False
                except Exception:
                    continue  # is raised when it is finished
        return True

    # -- some at a time ---------------------------------------------------------------

    def completed_by(self, env_ids: NDArray[np.intp]) -> list[int]:
        """The groups that have all their actions once these environments are sent, too.

        Raises:
            AlreadySteppingError: one of them has been sent and not received since.
        """
        flying = self.in_flight[env_ids]
        if flying.any():
            raise AlreadySteppingError(
                f"send: {name_envs(env_ids[flying].tolist())} have been sent before and not "
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
        """Sends some environments, with a command for their groups, which owe no answer.

        Args:
            env_ids: the environments.
            packed: by group, what its driver packed.
        """
        self._send(env_ids, self._commands(packed))

    def send_step(
        self, env_ids: NDArray[np.intp], groups: Iterable[int], actions: Mapping[int, Any]
    ) -> None:
        """Sends some environments, to be stepped.

        Args:
            env_ids: the environments.
            groups: those that have all their actions now.
            actions: by group, those that had to be packed.
        """
        if self._before_step is not None:
            self._before_step()
        tag = self._tag = self._tag + 1
        asks = {k: (tag, partial(self.drivers[k].ask_step, tag, actions.get(k))) for k in groups}
        self._send(env_ids, asks)

    def _send(self, env_ids: NDArray[np.intp], asks: Mapping[int, _Asking]) -> None:
        """Takes note that environments are sent, and starts groups."""
        owing, new = {**self.owing, **asks}, {**self._new, **asks}
        in_flight = self.in_flight.copy()
        in_flight[env_ids] = True
        interrupted = self._interrupted
        # No call in between, so that an interrupt finds either all of it or nothing. One that comes
        # while groups are asked may leave half a request, which asking for its result mends.
        self.owing, self._new, self.in_flight, self.sending = owing, new, in_flight, True
        self._interrupted = True
        for _, ask in asks.values():
            ask()
        self._interrupted = interrupted
        if self._asked is not None:
            self._asked()

    def wait(self, wanted: int, timeout: float | None) -> dict[int, Any]:
        """Waits until so many environments have answered, or until the time is over.

        Returns:
            What came of each group that has; :meth:`receive` takes note of it.

        Raises:
            EnvError: an environment failed.
            WorkerDiedError: the process around a group ended.
            WorkerTimeoutError: a process took longer than it may.
        """
        deadline = None if timeout is None else monotonic() + timeout
        # Groups in this process work only here: one that others were quicker than comes first now.
        passed_over = [k for k in self._local if k in self.owing and k not in self._new]
        for k, (tag, ask) in self._new.items():
            if self.drivers[k].tag != tag:  # an interrupt came before it was asked
                ask()
            self._watch(k)
        self._new = {}
        if self._interrupted:  # an answer may have been read that nobody took note of
            self._collect(self.owing)
        self._interrupted = True
        ready, waiter = self._ready, self._waiter
        for k in passed_over:
            if k not in ready:
                ready[k] = self._answer_of(k)
        if ready or self._local or deadline is not None:
            self._collect(self._or_overdue(waiter.now(self._at_work())))
        while sum([len(self._envs[k]) for k in ready]) < wanted:
            at_work = self._at_work()
            local = next((k for k in self._local if k in at_work), None)
            if local is not None:
                ready[local] = self._answer_of(local)
                self._collect(self._or_overdue(waiter.now(self._at_work())))
                continue
            if deadline is not None and monotonic() >= deadline:
                break
            until = deadline
            if self._limited:
                dues = [*self._dues().values(), deadline]
                until = min([due for due in dues if due is not None], default=None)
            self._collect(self._or_overdue(waiter.wait(at_work, until)))
        return dict(sorted(ready.items()))

    def receive(self, env_ids: NDArray[np.intp]) -> None:
        """Takes note that the environments of the groups that are ready have been received."""
        owing = {k: asking for k, asking in self.owing.items() if k not in self._ready}
        in_flight, sending = _without(self.in_flight, env_ids)
        # As in :meth:`_send`.
        self.owing, self._ready, self._interrupted = owing, {}, False
        self.in_flight, self.sending = in_flight, sending

    def recall(self) -> dict[int, Any]:
        """Waits for every group at work, and forgets what has been sent.

        Returns:
            What came of each.
        """
        results = dict(self.finish())
        in_flight = np.zeros_like(self.in_flight)
        self.owing, self._new, self._ready = {}, {}, {}
        self._interrupted = self.sending = False
        self.in_flight = in_flight
        return results

    def wanted(self, min_envs: int | None) -> int:
        """How many environments to wait for, if so many can answer.

        Raises:
            NotSteppingError: nothing that was sent has been started.
            ValueError: fewer environments have been started.
        """
        started = len(self.started())
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

    def started(self) -> list[int]:
        """The environments that are stepping."""
        return [env for k in sorted(self.owing) for env in self._envs[k].tolist()]

    def envs_of(self, groups: Iterable[int]) -> NDArray[np.intp]:
        """The environments of some groups, in the groups' order."""
        envs = [self._envs[k] for k in groups]
        return envs[0].copy() if len(envs) == 1 else np.concatenate(envs)

    def _why_not_more(self) -> str:
        held = self.in_flight.copy()
        held[self.started()] = False
        if not held.any():
            return ""
        return (
            f"; {name_envs(np.flatnonzero(held).tolist())} have been sent, and wait for the "
            "actions of the others that share their worker"
        )

    def _at_work(self) -> set[int]:
        return self.owing.keys() - self._ready.keys()

    def _dues(self) -> dict[int, float]:
        """By when each group at work that may not take any time must have answered."""
        dues = {k: self.drivers[k].due for k in self._limited & self._at_work()}
        return {k: due for k, due in dues.items() if due is not None}

    def _collect(self, groups: Iterable[int]) -> None:
        """Takes the answers of those groups that have one."""
        for k in groups:
            if k in self.owing and k not in self._ready and k not in self._local:
                try:
                    self._ready[k] = self._answer_of(k, _AT_ONCE)
                except TimeoutError:
                    self._watch(k)

    def _answer_of(self, k: int, deadline: float | None = None) -> Any:
        """What a group answers; one that raises has done so once, and owes nothing any more."""
        try:
            return self.drivers[k].result(deadline)
        except TimeoutError:
            raise
        except Exception:
            owing = {other: asking for other, asking in self.owing.items() if other != k}
            in_flight, sending = _without(self.in_flight, self._envs[k])
            # As in :meth:`_send`.
            self.owing, self.failed = owing, k
            self.in_flight, self.sending = in_flight, sending
            raise

    def _or_overdue(self, groups: set[int]) -> set[int]:
        """Groups that may have answered; if there are none, those that should have by now."""
        if groups or not self._limited:
            return groups
        now = monotonic()
        return {k for k, due in self._dues().items() if due < now}

    def _watch(self, k: int) -> None:
        if self.drivers[k].due is not None:
            self._limited.add(k)
        self._waiter.watch(k)

    def leave_to(self, other: Any) -> None:
        """Forgets everything, and has another object in the place of each driver.

        In place, so that whatever is under way meets it, too.
        """
        self.drivers[:] = [other] * len(self.drivers)
        self._order[:] = enumerate(self.drivers)
        self.owing = {}
        self.stepping = self.sending = False

    # -- what may be asked now --------------------------------------------------------

    def check_idle(self, what: str) -> None:
        """Raises unless nothing is pending.

        Raises:
            AlreadySteppingError: something is.
        """
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step is pending: finish it with step_wait first"
            )
        if self.sending:
            (envs,) = self.in_flight.nonzero()
            raise AlreadySteppingError(
                f"{what} was called while {name_envs(envs.tolist())} have been sent and not "
                "received: receive them with recv first"
            )

    def check_not_stepping(self, what: str) -> None:
        """Raises if a step of all is pending.

        Raises:
            AlreadySteppingError: it is.
        """
        if self.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step_async is pending: finish it with step_wait "
                "first; send and recv are another way of stepping"
            )


def _without(
    in_flight: NDArray[np.bool_], landed: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], bool]:
    """Which environments are in flight, once some are no more, and whether any is."""
    still = in_flight.copy()
    still[landed] = False
    return still, bool(np.count_nonzero(still))


def ends_all(error: BaseException) -> bool:
    """Whether after an error in a command nothing can be asked any more."""
    return isinstance(error, WorkerDiedError | WorkerTimeoutError) and not error.restarted
