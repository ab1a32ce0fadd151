"""Driver of a group in a Ray actor.

If an actor fails during a request, the request may or may not have been executed. The driver kills
the actor and does not repeat the request. If the actor runs worker processes, one of them can fail
without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import STARTUP_COMMANDS, display_name
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, RequestType
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, apply_timing_delta
from xuance_envs.engine.pickled_commands import PackedCommand, PicklingDriver
from xuance_envs.engine.ray.actor_client import ActorClient, ActorSettings
from xuance_envs.engine.ray.cluster import ActorLostError
from xuance_envs.engine.ray.messages import CODE_DISTRIBUTION_HINT, GroupReply, GroupRequest
from xuance_envs.engine.ray.transports import POLL_INTERVAL, ActorCall, SocketTransport
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

GRACE = 5.0
"""Seconds after a time limit within which an actor may report that its worker exceeded it."""

_NO_WAIT = 0.0


class ActorDriver(PicklingDriver):
    kind_name = "an actor"
    tag = 0
    reply_deadline: float | None = None

    def __init__(
        self,
        settings: ActorSettings,
        actor: ActorClient,
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
        self._last_timed: GroupReply | None = None
        self._failure_error: WorkerDiedError | WorkerTimeoutError | None = None

    @property
    @override
    def alive(self) -> bool:
        return self.actor.lost is None and self._failure_error is None

    @override
    def attach(self, arrays: StepArrays) -> None:
        """Do nothing, because the actor's client holds the arrays."""

    @property
    def answered(self) -> bool:
        """True if :meth:`result` returns or raises without waiting."""
        call = self.actor.call_of(self._group)
        return call is None or call.answers is not None or self.actor.lost is not None

    @property
    def connection(self) -> SocketTransport | None:
        call = self.actor.call_of(self._group)
        return None if call is None else self.actor.connection_of(call)

    @property
    def ref(self) -> Any:
        call = self.actor.call_of(self._group)
        return None if call is None else call.ref

    @override
    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        return dumps_for_worker(("step", (actions,)))

    @override
    def submit_step(self, tag: int, actions: bytes | None) -> None:
        self._command = "step"
        self._submit(
            self._settings.timeout,
            GroupRequest(self._group, tag, RequestType.STEP, "", actions or b""),
        )

    @override
    def submit(self, tag: int, packed: PackedCommand) -> None:
        command, payload, buffers = packed
        self._command = command
        settings = self._settings
        limit = settings.start_timeout if command in STARTUP_COMMANDS else settings.timeout
        self._submit(
            limit, GroupRequest(self._group, tag, RequestType.CALL, command, payload), buffers
        )

    def _submit(
        self, limit: float | None, group_request: GroupRequest, buffers: Sequence[Any] = ()
    ) -> None:
        self._limit = limit
        self.reply_deadline = None if limit is None else monotonic() + limit + self._grace
        self.actor.submit(group_request, buffers)
        self.tag = group_request.tag

    @override
    def result(self, deadline: float | None = None) -> Any:
        answer = self._answer(deadline)
        return OUTCOME_OF_REPLY.get(answer.code) or self.unpack(answer.code, answer.payload)

    def _answer(self, deadline: float | None) -> GroupReply:
        call = self.actor.call_of(self._group)
        if call is None or call.answers is None:
            self._flush()
            call = self._fetch(self.actor.call_of(self._group), deadline)
        assert call.answers is not None
        answer = call.answers[self._group]
        if answer is not self._last_timed:
            self._last_timed = answer
            if answer.is_outcome:
                apply_timing_delta(self._times, answer.timing_delta)
        return answer

    def _fetch(self, call: ActorCall | None, deadline: float | None) -> ActorCall:
        while call is not None and self.actor.lost is None:
            now = monotonic()
            ends = [now + POLL_INTERVAL, self.reply_deadline, deadline]
            try:
                left = min(end for end in ends if end is not None) - now
                self.actor.receive(call, max(left, 0.0))
                return call
            except ActorLostError as error:
                self.actor.mark_lost(str(error))
                break
            except TimeoutError:
                now = monotonic()
            if (
                self.reply_deadline is not None
                and now >= self.reply_deadline
                and not self.actor.has_progress(call)
            ):
                raise self._timeout_error()
            if deadline is not None and now >= deadline:
                raise TimeoutError
            self._flush()
            for sibling in self.siblings:
                sibling.look()
        raise self.death_error()

    def look(self) -> None:
        """Detect a failed actor without waiting."""
        call = self.actor.call_of(self._group)
        if call is not None and call.answers is None:
            with suppress(TimeoutError):
                self._fetch(call, _NO_WAIT)

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self._times)

    @override
    def death_error(self) -> WorkerDiedError:
        if isinstance(self._failure_error, WorkerDiedError):
            return self._failure_error
        details = f"The actor was on {self.actor.where}. Ray reports:\n{self.actor.lost}"
        envs, pid = range(self.lo, self.hi), self.actor.pid
        if not self.actor.plan.restarts:  # then the actor's other groups are reported, too
            envs = self.actor.plan.envs
        return WorkerDiedError(envs, pid, None, display_name(self._command), details)

    def _timeout_error(self) -> WorkerTimeoutError:
        """Kill the actor, and return the error that reports its timeout."""
        assert self._limit is not None
        started = self.actor.place is not None
        where = f"The actor was on {self.actor.where}."
        details = where if started else self._settings.describe_shortage()
        self.actor.mark_lost("It exceeded the time limit and was killed.")
        envs = range(self.lo, self.hi)
        return WorkerTimeoutError(
            envs, self.actor.pid, self._limit, display_name(self._command), details
        )

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            error.details = f"{error.details}\nThe worker was on {self.actor.where}.".lstrip()
            self._failure_error = error
            return error
        loads = self._command in ("build", "rebuild")
        if not (loads and isinstance(error, ImportError | AttributeError)):
            return error
        failure = EnvError(
            self.lo,
            "construct",
            f"{type(error).__name__}: {error}. The environment functions could not be loaded on "
            f"{self.actor.where}: their code must be available there, {CODE_DISTRIBUTION_HINT}",
        )
        failure.__cause__ = error
        return failure
