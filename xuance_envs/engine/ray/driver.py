"""Driver of a group in a Ray actor.

If an actor fails during a request, it may have executed the request. So the driver kills the actor
and does not repeat the request. If only one of an actor's worker processes fails, the actor
continues with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import display_name
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, apply_timing_delta
from xuance_envs.engine.pickled_commands import PackedCommand, PicklingDriver
from xuance_envs.engine.ray.actor_client import ActorClient
from xuance_envs.engine.ray.exchange import Exchange
from xuance_envs.engine.ray.messages import CODE_DISTRIBUTION_HINT, GroupReply
from xuance_envs.engine.system.deadline import CHECK_INTERVAL
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

GRACE = 5.0  # seconds after a limit in which an actor may report the worker's timeout


class ActorDriver(PicklingDriver):
    kind_name = "an actor"
    tag = 0

    def __init__(
        self,
        actor: ActorClient,
        group: int,
        exchange: Exchange,
        describe_shortage: Callable[[], str],
    ) -> None:
        plan = actor.plan
        super().__init__(*plan.split[group], (plan.timeout, plan.start_timeout))
        self.actor = actor
        self._describe_shortage = describe_shortage
        self.group = group
        self._exchange = exchange
        self._grace = GRACE if actor.plan.in_processes else 0.0
        self._times = bytearray(TIMES_BYTES)
        self._last_timed: GroupReply | None = None
        self._failure_error: WorkerDiedError | WorkerTimeoutError | None = None

    @property
    @override
    def alive(self) -> bool:
        return self.actor.lost is None and self._failure_error is None

    @override
    def submit_step(self, tag: int, actions: bytes | None) -> None:
        self.submit(tag, PackedCommand("step", actions or b""))

    @override
    def submit(self, tag: int, packed: PackedCommand) -> None:
        self._begin(packed.command, monotonic() + self._grace)
        self._exchange.submit(self.actor, self.group, packed)
        self.tag = tag

    @override
    def result(self, deadline: float | None = None) -> Any:
        while (reply := self.actor.reply(self.group)) is None:
            self._wait(deadline)
        if reply is not self._last_timed:
            self._last_timed = reply
            if reply.is_outcome:
                apply_timing_delta(self._times, reply.timing_delta)
        return OUTCOME_OF_REPLY.get(reply.code) or self.unpack(reply.code, reply.payload)

    def _wait(self, deadline: float | None) -> None:
        """Wait for replies, and raise if any worker of the vectorized environment has failed."""
        began = monotonic()
        ends = [began + CHECK_INTERVAL, self.reply_deadline, deadline]
        until = min(end for end in ends if end is not None)
        self._exchange.receive([self], max(until - began, 0.0))
        self.check(began)
        if (now := monotonic()) < until or self.actor.has_answered(self.group):
            return
        if deadline is not None and now >= deadline:
            raise TimeoutError
        self._exchange.receive(self.siblings, 0.0)
        for sibling in self.siblings:
            sibling.check(began)

    def check(self, began: float) -> None:
        """Raise if the actor failed, or if the deadline has passed in a wait since ``began``."""
        if self.actor.reply(self.group) is not None:
            return
        if self.actor.lost is not None:
            raise self.death_error()
        if self._deadline is not None:
            connection = self.actor.connection
            progress = 0 if connection is None else connection.num_unread
            if self._deadline.has_passed(began, progress):
                raise self._timeout_error()

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
        started = self.actor.place is not None
        where = f"The actor was on {self.actor.where}."
        details = where if started else self._describe_shortage()
        self.actor.mark_lost("It exceeded the time limit and was killed.")
        return self._hang_error(self.actor.pid, None, details)

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
