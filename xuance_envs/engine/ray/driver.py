"""A group in a Ray actor, as a driver.

A request is answered, or it is an error that says what became of the actor and where it was. Nobody
may know whether what it was asked last was executed: the actor then counts as lost and is killed,
and nothing is asked twice. Where the group has a process of its own in the actor, that may be lost
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs.engine.backend import STARTING, Packed, WorkerDriver, shown
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.requests import PLAIN, Request
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, take_news
from xuance_envs.engine.ray.cluster import LostError
from xuance_envs.engine.ray.messages import HOW_CODE_COMES, Answer, Ask
from xuance_envs.engine.ray.ways import LOOK, Call, Connection
from xuance_envs.engine.ray.worker_actor import ActorSettings, WorkerActor
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

__all__ = ["ActorDriver"]

GRACE = 5.0
"""Seconds more that an actor has to tell that a process of its own took too long."""

_AT_ONCE = 0.0


class ActorDriver(WorkerDriver):
    """One group of environments in an actor.

    Args:
        settings: how actors are started.
        actor: its actor.
        group: which of the actor's groups it is.
        flush: makes the calls of what this and other groups have been asked.

    Attributes:
        actor (WorkerActor): as given.
    """

    what = "an actor"
    tag = 0
    due: float | None = None

    def __init__(
        self,
        settings: ActorSettings,
        actor: WorkerActor,
        group: int,
        flush: Callable[[], None],
    ) -> None:
        super().__init__(*actor.plan.split[group])
        self.actor = actor
        self._settings = settings
        self._group = group
        self._flush = flush
        self._grace = GRACE if actor.plan.in_processes else 0.0
        self._limit: float | None = None
        self._command = "start"
        self._times = bytearray(TIMES_BYTES)
        self._timed: Answer | None = None
        self._death: WorkerDiedError | WorkerTimeoutError | None = None

    @property
    def alive(self) -> bool:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        return self.actor.lost is None and self._death is None

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`: its actor knows of them."""

    @property
    def answered(self) -> bool:
        """Whether its result takes no waiting."""
        call = self.actor.call_of(self._group)
        return call is None or call.answers is not None or self.actor.lost is not None

    @property
    def connection(self) -> Connection | None:
        """By which its last call is answered; None where Ray tells of that."""
        call = self.actor.call_of(self._group)
        return None if call is None else self.actor.connection_of(call)

    @property
    def ref(self) -> Any:
        """What Ray tells by that its last call is answered, or cannot be."""
        call = self.actor.call_of(self._group)
        return None if call is None else self.actor.ref_of(call)

    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return dumps_for_worker(("step", (actions,)))

    def ask_step(self, tag: int, actions: bytes | None) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        self._command = "step"
        self._ask(self._settings.timeout, Ask(self._group, tag, Request.STEP, "", actions or b""))

    def ask(self, tag: int, packed: Packed) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        command, payload, lent = packed
        self._command = command
        settings = self._settings
        limit = settings.start_timeout if command in STARTING else settings.timeout
        self._ask(limit, Ask(self._group, tag, Request.CALL, command, payload), lent)

    def _ask(self, limit: float | None, ask: Ask, lent: Sequence[Any] = ()) -> None:
        self._limit = limit
        self.due = None if limit is None else monotonic() + limit + self._grace
        self.actor.ask(ask, lent)
        self.tag = ask.tag

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`.

        Raises:
            WorkerDiedError: the actor has been lost, or the group's process, or one of its
                siblings.
            WorkerTimeoutError: it has not answered in the time it was given, and was killed.
        """
        answer = self._answer(deadline)
        return PLAIN.get(answer.code) or self.unpack(answer.code, answer.payload)

    def _answer(self, deadline: float | None) -> Answer:
        call = self.actor.call_of(self._group)
        if call is None or call.answers is None:
            self._flush()
            call = self._fetch(self.actor.call_of(self._group), deadline)
        assert call.answers is not None
        answer = call.answers[self._group]
        if answer is not self._timed:
            self._timed = answer
            if answer.is_outcome:
                take_news(self._times, answer.news)
        return answer

    def _fetch(self, call: Call | None, deadline: float | None) -> Call:
        """Waits for the reply.

        Raises:
            TimeoutError: the deadline passed.
        """
        while call is not None and self.actor.lost is None:
            now = monotonic()
            ends = [now + LOOK, self.due, deadline]
            try:
                left = min(end for end in ends if end is not None) - now
                self.actor.receive(call, max(left, 0.0))
                return call
            except LostError as error:
                self.actor.lose(str(error))
                break
            except TimeoutError:
                now = monotonic()
            if self.due is not None and now >= self.due and not self.actor.progresses(call):
                raise self._overdue()
            if deadline is not None and now >= deadline:
                raise TimeoutError
            self._flush()
            for sibling in self.siblings:
                sibling.look()
        raise self.death()

    def look(self) -> None:
        """Notices, without waiting, that the actor has been lost.

        Raises:
            WorkerDiedError: it has.
            WorkerTimeoutError: it has not answered in the time it was given.
        """
        call = self.actor.call_of(self._group)
        if call is not None and call.answers is None:
            with suppress(TimeoutError):
                self._fetch(call, _AT_ONCE)

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`: as of the last step that was received."""
        return StepTimes.read(self._times)

    def death(self) -> WorkerDiedError:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        if isinstance(self._death, WorkerDiedError):
            return self._death
        details = f"It was an actor on {self.actor.where}. Ray says:\n{self.actor.lost}"
        envs, pid = range(self.lo, self.hi), self.actor.pid
        if not self.actor.plan.restarts:  # all of them are lost, and not only these
            envs = self.actor.plan.envs
        return WorkerDiedError(envs, pid, None, shown(self._command), details)

    def _overdue(self) -> WorkerTimeoutError:
        """Ends an actor that takes too long."""
        assert self._limit is not None
        started = self.actor.place is not None
        where = f"It was an actor on {self.actor.where}."
        details = where if started else self._settings.shortage()
        self.actor.lose("It took too long, and was killed.")
        envs = range(self.lo, self.hi)
        return WorkerTimeoutError(envs, self.actor.pid, self._limit, shown(self._command), details)

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            error.details = f"{error.details}\nIt was on {self.actor.where}.".lstrip()
            self._death = error
            return error
        loads = self._command in ("build", "rebuild")
        if not (loads and isinstance(error, ImportError | AttributeError)):
            return error
        failure = EnvError(
            self.lo,
            "construct",
            f"{type(error).__name__}: {error}. What makes the environments could not be loaded "
            f"on {self.actor.where}: their code has to be there, {HOW_CODE_COMES}",
        )
        failure.__cause__ = error
        return failure
