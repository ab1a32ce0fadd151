"""A group in a Ray actor, as a driver.

A step is one call and one reply, whatever the number of environments. A request is answered, or it
is an error that says what became of the actor and where it was. Ray may not know whether a call
that failed was executed: the actor then counts as lost and is killed, and no call is made twice.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs.engine.backend import WorkerDriver, shown
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.requests import PLAIN, Request
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, take_news
from xuance_envs.engine.ray.actor import OUTCOMES, REPLY, REQUEST
from xuance_envs.engine.ray.cluster import LostError
from xuance_envs.engine.ray.wire import GroupWire
from xuance_envs.engine.ray.worker_actor import LOOK, ActorSettings, WorkerActor
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

__all__ = ["ActorDriver"]

_AT_ONCE = 0.0


class ActorDriver(WorkerDriver):
    """One group of environments in an actor of its own.

    Args:
        settings: how its actor is started.
        lo: index of its first environment.
        hi: index after its last environment.

    Attributes:
        actor (WorkerActor): the actor.
        ref: what Ray knows the last call by.
    """

    what = "an actor"
    tag = 0
    due: float | None = None

    def __init__(self, settings: ActorSettings, lo: int, hi: int) -> None:
        super().__init__(lo, hi)
        self.actor = WorkerActor(settings)
        self.ref: Any = None
        self._settings = settings
        self._cluster = settings.cluster
        self._limit: float | None = None
        self._command = "start"
        self._wire: GroupWire
        self._times = bytearray(TIMES_BYTES)
        self._request: tuple[int, bytes] | None = None
        self._answer: tuple[int, bytes] | None = None

    @property
    def alive(self) -> bool:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        return self.actor.lost is None

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`: replies are copied into them."""
        self._wire = GroupWire(arrays)

    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return dumps_for_worker(actions)

    def ask_step(self, tag: int, actions: bytes | None) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        self._send(tag, Request.STEP, "step", self._wire.actions() + (actions or b""))

    def ask(self, tag: int, packed: tuple[str, bytes]) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        self._send(tag, Request.CALL, *packed)

    def _send(self, tag: int, request: Request, command: str, payload: bytes) -> None:
        starts = command in ("build", "rebuild")
        self._limit = self._settings.start_timeout if starts else self._settings.timeout
        self.due = None if self._limit is None else monotonic() + self._limit
        self._command = command
        self._request = tag, REQUEST.pack(tag, request) + payload
        self._submit()

    def _submit(self) -> None:
        """Makes the call; done again after an interrupt, the actor takes it for the same one."""
        assert self._request is not None
        tag, request = self._request
        self._answer = None
        self.ref = self.actor.ask(request)
        self.tag = tag
        self._request = None

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`.

        Raises:
            WorkerDiedError: the actor has been lost, or one of its siblings.
            WorkerTimeoutError: it has not answered in the time it was given, and was killed.
        """
        if self._request is not None:
            self._submit()
        if self._answer is None:
            self._answer = self._loaded(self._fetch(deadline))
        code, payload = self._answer
        return PLAIN.get(code) or self.unpack(code, payload)

    def _fetch(self, deadline: float | None) -> bytes:
        """Waits for the reply.

        Raises:
            TimeoutError: the deadline passed.
        """
        while self.alive:
            now = monotonic()
            ends = [now + LOOK, self.due, deadline]
            try:
                left = min(end for end in ends if end is not None) - now
                return bytes(self._cluster.get(self.ref, max(left, 0.0)))
            except LostError as error:
                self.actor.lose(str(error))
                break
            except TimeoutError:
                now = monotonic()
            if self.due is not None and now >= self.due and not self._replied():
                raise self._overdue()
            if deadline is not None and now >= deadline:
                raise TimeoutError
            for sibling in self.siblings:
                sibling.look()
        raise self.death()

    def _replied(self) -> bool:
        """Whether there is a reply, which may still be on its way from another machine."""
        return bool(self._cluster.wait([self.ref], 1, 0.0))

    def _loaded(self, reply: bytes) -> tuple[int, bytes]:
        """Brings what is for the arrays there; returns the reply's code and payload."""
        start = 1
        if reply[0] in OUTCOMES:
            *extents, masks, news = REPLY.unpack_from(reply, start)
            infos, resets = extents[:2], extents[2:]
            start = self._wire.take_results(reply, start + REPLY.size, infos, resets, masks)
            take_news(self._times, news)
        return reply[0], reply[start:]

    def look(self) -> None:
        """Notices, without waiting, that the actor has been lost.

        Raises:
            WorkerDiedError: it has.
            WorkerTimeoutError: it has not answered in the time it was given.
        """
        if self.ref is not None and self._answer is None and self._request is None:
            with suppress(TimeoutError):
                self._answer = self._loaded(self._fetch(_AT_ONCE))

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`: as of the last step that was received."""
        return StepTimes.read(self._times)

    def death(self) -> WorkerDiedError:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        details = f"It was an actor on {self.actor.where}. Ray says:\n{self.actor.lost}"
        envs = range(self.lo, self.hi)
        return WorkerDiedError(envs, self.actor.pid, None, shown(self._command), details)

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
        loads = self._command in ("build", "rebuild")
        if not (loads and isinstance(error, ImportError | AttributeError)):
            return error
        failure = EnvError(
            self.lo,
            "construct",
            f"{type(error).__name__}: {error}. What makes the environments could not be loaded "
            f"on {self.actor.where}: their code has to be there, installed, or brought by Ray with "
            "runtime_env={'working_dir': ...} or {'py_modules': [...]}",
        )
        failure.__cause__ = error
        return failure
