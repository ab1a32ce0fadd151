"""A group of environments in a Ray actor, seen from the caller.

What it guarantees:

- A step is one call and one reply, whatever the number of environments.
- A request is answered, or it is an error that says what became of the actor and where it was. Ray
  may not know whether a call that failed was executed: the actor then counts as lost and is
  killed, and no call is made twice.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from xuance_envs.engine.backend import WorkerDriver, shown
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import DONE, ENDED
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, take_news
from xuance_envs.engine.ray.actor import OUTCOME, REQUEST, Answer, Ask
from xuance_envs.engine.ray.cluster import ActorOptions, LostError, RayCluster
from xuance_envs.engine.ray.wire import GroupWire
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

__all__ = ["RayWorker", "end_actors"]

LOOK = 1.0
"""Seconds between two looks at whether another actor has been lost, while one is waited for."""

PATIENCE = 5.0
"""Seconds actors have to close their environments before they are killed."""

_LINES = 20
"""Of what Ray says about a lost actor, so many are shown."""

_AT_ONCE = 0.0


@dataclass(frozen=True)
class ActorSettings:
    """How the actors of one vector environment are started.

    Attributes:
        cluster: where they are.
        options: what each takes, and where.
        count: how many there are.
        threads: how many threads numeric libraries may use in each; None leaves them be.
        timeout: seconds each may take to answer; None for ever.
        start_timeout: seconds until each has to have made its environments; None for ever.
    """

    cluster: RayCluster
    options: ActorOptions
    count: int
    threads: int | None
    timeout: float | None
    start_timeout: float | None

    def shortage(self) -> str:
        """Why an actor may not have been started, in words."""
        return (
            "Ray has not started its actor, as it does where the cluster has no room for it. "
            f"All of them take {self.cluster.shortage(self.options, self.count)}. Have fewer "
            "workers with more environments each (in_series), or let them take less "
            "(num_cpus_per_worker)"
        )


def start_actor(settings: ActorSettings) -> Any:
    """Starts an actor, and does not wait for it; returns its handle."""
    return settings.cluster.start_actor(settings.options, settings.threads)


def discard_actor(cluster: RayCluster, handle: Any) -> None:
    """Ends an actor, whatever it is doing."""
    cluster.kill(handle)


class RayWorker(WorkerDriver):
    """One group of environments in an actor of its own; a driver of it.

    Args:
        settings: how its actor is started.
        lo: index of its first environment.
        hi: index after its last environment.
    """

    what = "an actor"
    tag = 0
    due: float | None = None

    def __init__(self, settings: ActorSettings, lo: int, hi: int) -> None:
        super().__init__(lo, hi)
        self.ref: Any = None
        self._settings = settings
        self._cluster = settings.cluster
        self._handle = start_actor(settings)
        self._limit: float | None = None
        self._command = "start"
        self._wire: GroupWire
        self._times = bytearray(TIMES_BYTES)
        self._request: tuple[int, bytes] | None = None
        self._answer: tuple[Answer, Any] | None = None
        self._lost: str | None = None
        self._place: tuple[int, str] | None = None
        # Answered before anything else is, and so it tells whether the actor has started.
        self._whereabouts = self._cluster.call(self._handle.whereabouts)

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`: replies are copied into them."""
        self._wire = GroupWire(arrays)

    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return dumps_for_worker(actions)

    def ask_step(self, tag: int, actions: bytes | None) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        payload = self._wire.actions()
        self._send(tag, Ask.STEP, "step", payload if actions is None else payload + actions)

    def ask(self, tag: int, packed: tuple[str, bytes]) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        command, message = packed
        self._send(tag, Ask.COMMAND, command, message)

    def _send(self, tag: int, ask: Ask, command: str, payload: bytes) -> None:
        starts = command in ("build", "rebuild")
        self._limit = self._settings.start_timeout if starts else self._settings.timeout
        self.due = None if self._limit is None else monotonic() + self._limit
        self._command = command
        self._request = tag, REQUEST.pack(tag, ask) + payload
        self._submit()

    def _submit(self) -> None:
        """Makes the call; done again after an interrupt, the actor takes it for the same one."""
        assert self._request is not None
        tag, request = self._request
        self._answer = None
        self.ref = self._cluster.call(self._handle.answer, request)
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
            self._answer = self._taken(self._fetch(deadline))
        answer, value = self._answer
        if answer is Answer.FAILED:
            raise self._failure(unpack_error(value))
        return loads(value) if answer is Answer.VALUE else value

    def _fetch(self, deadline: float | None) -> bytes:
        """Waits for the reply.

        Raises:
            TimeoutError: the deadline passed.
        """
        while self._lost is None:
            now = monotonic()
            ends = [now + LOOK, self.due, deadline]
            try:
                left = min(end for end in ends if end is not None) - now
                return bytes(self._cluster.get(self.ref, max(left, 0.0)))
            except LostError as error:
                self._lose(str(error))
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

    def _taken(self, reply: bytes) -> tuple[Answer, Any]:
        """Takes a reply in: what is for the arrays into the arrays."""
        answer = Answer(reply[0])
        if answer in (Answer.VALUE, Answer.FAILED):
            return answer, reply[1:]
        _, ended, *columns, news = OUTCOME.unpack_from(reply)
        end = self._wire.take_results(reply, OUTCOME.size, tuple(columns), bool(ended))
        take_news(self._times, news)
        if answer is Answer.PLAIN:
            return answer, ENDED if ended else DONE
        return answer, loads(reply[end:])

    def look(self) -> None:
        """Notices, without waiting, that the actor has been lost.

        Raises:
            WorkerDiedError: it has.
            WorkerTimeoutError: it has not answered in the time it was given.
        """
        if self.ref is not None and self._answer is None and self._request is None:
            with suppress(TimeoutError):
                self._answer = self._taken(self._fetch(_AT_ONCE))

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`: as of the last step that was received."""
        return StepTimes.read(self._times)

    # -- how it is --------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        return self._lost is None

    @property
    def place(self) -> tuple[int, str] | None:
        """Its process id and the id of its node; None as long as it has not been started."""
        if self._place is None and self._cluster.wait([self._whereabouts], 1, 0.0):
            with suppress(LostError, TimeoutError):
                self._place = self._cluster.get(self._whereabouts, LOOK)
        return self._place

    def death(self) -> WorkerDiedError:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        pid = None if self.place is None else self.place[0]
        details = f"It was an actor on {self._where()}. Ray says:\n{self._lost}"
        envs = range(self.lo, self.hi)
        return WorkerDiedError(envs, pid, None, shown(self._command), details)

    def _where(self) -> str:
        return "no node yet" if self.place is None else self._cluster.name_node(self.place[1])

    def _lose(self, told: str) -> None:
        """Takes the actor for lost; it may still be there, and answer, and must not."""
        lines = told.strip().splitlines()
        self._lost = "\n".join(lines[:_LINES])
        self.kill()

    def kill(self) -> None:
        """Ends the actor, whatever it is doing."""
        discard_actor(self._settings.cluster, self._handle)

    def ask_to_close(self) -> Any:
        """Has it close its environments, once it is done with what it is doing.

        Returns:
            The call; None if the actor has been lost, or has not been started.
        """
        if self._lost is not None or self.place is None:
            return None
        return self._cluster.call(self._handle.close)

    def _overdue(self) -> WorkerTimeoutError:
        """Ends an actor that takes too long."""
        assert self._limit is not None
        place = self.place
        if place is None:
            details = self._settings.shortage()
        else:
            details = f"It was an actor on {self._where()}."
        self._lose("It took too long, and was killed.")
        pid = None if place is None else place[0]
        return WorkerTimeoutError(
            range(self.lo, self.hi), pid, self._limit, shown(self._command), details
        )

    def _failure(self, error: BaseException) -> BaseException:
        """The error to raise for what the actor raised."""
        if self._command not in ("build", "rebuild") or not isinstance(
            error, ImportError | AttributeError
        ):
            return error
        failure = EnvError(
            self.lo,
            "construct",
            f"{type(error).__name__}: {error}. What makes the environments could not be loaded "
            f"on {self._where()}: their code has to be there, installed, or brought by Ray with "
            "runtime_env={'working_dir': ...} or {'py_modules': [...]}",
        )
        failure.__cause__ = error
        return failure


def end_actors(cluster: RayCluster, workers: list[RayWorker], patience: float = PATIENCE) -> None:
    """Ends actors: asks them to close their environments, then kills them.

    Args:
        cluster: where they are.
        workers: the actors; the list is empty afterwards.
        patience: seconds they have to close their environments.
    """
    try:
        if cluster.alive:
            calls = [call for worker in workers if (call := worker.ask_to_close()) is not None]
            if calls:
                cluster.wait(calls, len(calls), patience)
    finally:
        while workers:
            workers.pop().kill()
