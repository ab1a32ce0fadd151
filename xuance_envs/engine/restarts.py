"""Worker restarts: a failed worker is replaced, and its environments are created again.

A worker fails when its process ends, exceeds a timeout or, if requested, when an
environment raises. The driver's reaction depends on the command that failed, or on the first
command after the failure:

- Step: the environments are reset, and the step reports their episodes as truncated.
- Step of some environments: the same applies to these environments. The next step of the others
  truncates their episodes, unless the user resets them first.
- Reset: the given environments are reset. The next step of the others truncates their episodes.
- Any other command: if the worker failed during the command, the command raises, because it may
  have run in part. If the worker had failed before, the command runs on the reset environments. In
  both cases, the next step truncates the episodes.

Other workers do not wait for a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import Backend, WorkerDriver
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import STATE_COMMANDS, Outcome
from xuance_envs.engine.group.recipe import Seeding, derived_seed
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.last_snapshot import LastSnapshot
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

logger = logging.getLogger("xuance_envs")

_Command = tuple[str, Sequence[Any]]
STEP_OF_ALL: _Command = ("step", ())

_RESTARTABLE = ("step", "reset", "construct")
"""Commands in which an environment's exception may trigger a restart."""

PREPARING_TAG = -1
"""Tag of the request that prepares new environments; no request of the ledger has it."""


class WorkerState(Enum):
    RUNNING = auto()
    """The worker has the current request, or can accept it."""

    FAILED = auto()
    """The worker failed; the next wait for a result replaces it."""

    PREPARING = auto()
    """A new worker prepares its environments, and then receives the current request."""


WorkerFailure = EnvError | WorkerDiedError | WorkerTimeoutError


class RestartPolicy:
    """Restart settings and the number of restarts used, shared by all workers."""

    def __init__(
        self,
        limit: int | None,
        on_exception: bool = False,
        resumes: bool = False,
        raises: bool = False,
    ) -> None:
        self.count = 0
        self._raises = raises
        self.on_exception = on_exception
        self.resumes = resumes
        self._limit = limit

    def consume(self, error: WorkerFailure) -> None:
        """Count a restart, or raise the error if none is allowed."""
        if self._raises:
            raise error
        if self._limit is not None and self.count >= self._limit:
            exhausted = f"no restarts left: max_restarts={self._limit} reached"
            logger.error("%s", exhausted)
            if isinstance(error, EnvError):
                error.reason = f"{error.reason} ({exhausted})"
            else:
                error.details = f"{error.details}\n{exhausted}".lstrip()
            raise error
        self.count += 1
        limit = "no limit" if self._limit is None else f"at most {self._limit}"
        # As a string, because handlers that store the record would keep the error's arrays.
        logger.warning("restart %d (%s): %s", self.count, limit, str(error))


class RestartingDriver(Driver):
    """Driver that restarts its worker when it fails."""

    tag = 0

    def __init__(
        self,
        backend: Backend[Any],
        index: int,
        keywords: Sequence[Mapping[str, int]],
        arrays: StepArrays,
        restarts: RestartPolicy,
    ) -> None:
        self._backend = backend
        self._index = index
        super().__init__(self._worker.lo, self._worker.hi)
        self._keywords = keywords
        self._restarts = restarts
        self._arrays = arrays
        self._last_snapshot = LastSnapshot(arrays)
        self.seeds: list[Seeding] = [(None, 0)] * (self.hi - self.lo)
        self._attributes: dict[tuple[int, str], Any] = {}
        self._watched: set[int] = set()
        self._worker_state = WorkerState.RUNNING
        # Positions of new environments whose previous episodes were not truncated yet.
        self._to_truncate: set[int] = set()
        self._command: _Command = STEP_OF_ALL
        # The request's message, and whether the worker takes it by submit_step or by submit.
        self._packed: Any = None
        self._by_submit_step = True
        self._result: list[Any] = [None]
        self._truncated_outcome: Outcome | None = None
        self._worker.siblings = ()  # the end of another worker must not raise here

    @property
    def _worker(self) -> WorkerDriver:
        worker: WorkerDriver = self._backend.workers[self._index]
        return worker

    @property
    @override
    def fds(self) -> tuple[int, ...]:
        return self._worker.fds

    @property
    @override
    def reply_deadline(self) -> float | None:
        return self._worker.reply_deadline

    @override
    def pack_actions(self, actions: list[list[Any]]) -> Any:
        return self._worker.pack_actions(actions)

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        self._command, self._packed, self._by_submit_step = STEP_OF_ALL, actions, True
        self._result, self.tag = [], tag
        self._submit_if_alive()

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[_Command, Any]:
        packed = self._worker.pack(command, *arguments)
        if command not in STATE_COMMANDS:  # their arguments are never shared
            arguments = copy_of(arguments)
        return (command, arguments), packed  # the arguments are for a restarted worker

    @override
    def with_buffers(
        self, packed: tuple[_Command, Any], buffers: Sequence[Any]
    ) -> tuple[_Command, Any]:
        call, message = packed
        return call, self._worker.with_buffers(message, buffers)

    @override
    def submit(self, tag: int, packed: tuple[_Command, Any]) -> None:
        self._command, self._packed = packed
        self._by_submit_step, self._result, self.tag = False, [], tag
        self._submit_if_alive()

    @override
    def result(self, deadline: float | None = None) -> Any:
        while not self._result:
            try:
                self._advance(deadline)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._on_failure(error)
            except EnvError as error:
                self._on_env_error(error)
                preparing = self._worker_state is WorkerState.PREPARING
                if not self._restarts.on_exception or not (
                    preparing or error.command in _RESTARTABLE
                ):
                    if preparing:  # the next request tries again
                        self._worker_state = WorkerState.FAILED
                    raise
                self._on_failure(error)
        return self._result[0]

    @override
    def thaw(self, frozen: bytes) -> Any:
        return self._worker.thaw(frozen)

    @override
    def times(self) -> StepTimes:
        return self._worker.times()

    def _submit_if_alive(self) -> None:
        # A step detects by itself that the worker has ended. Other commands must not be submitted
        # to an ended worker, because they would seem to have caused its end.
        if self._worker_state is WorkerState.RUNNING and (
            self._by_submit_step or self._worker.alive
        ):
            self._submit_to_worker()

    def _submit_to_worker(self) -> None:
        if self._must_truncate():
            command, arguments = self._reset_command()
            self._worker.submit(self.tag, self._worker.pack(command, *arguments))
        elif self._by_submit_step:
            self._worker.submit_step(self.tag, self._packed)
        else:
            self._worker.submit(self.tag, self._packed)

    def _must_truncate(self) -> bool:
        """Return whether the current request is a step that must truncate episodes."""
        is_step = self._command[0] == "step"
        return (
            is_step
            and bool(self._to_truncate)
            and not self._to_truncate.isdisjoint(self._stepped_places())
        )

    def _stepped_places(self) -> Sequence[int]:
        """Return the positions of the environments that the current step includes."""
        _, arguments = self._command
        places: Sequence[int] = arguments[2] if arguments else range(self.hi - self.lo)
        return places

    def _advance(self, deadline: float | None) -> None:
        """Wait for the worker's reply and process it; can be repeated after an interrupt."""
        if self._worker_state is WorkerState.FAILED:
            self._restart_worker()
        worker = self._worker
        if self._worker_state is WorkerState.PREPARING:
            self._on_ready(worker.result(deadline))
            self._worker_state = WorkerState.RUNNING
            self._submit_to_worker()
        elif worker.tag != self.tag:
            if not worker.alive:
                raise worker.death_error()
            self._submit_to_worker()
        self._on_result(worker.result(deadline))

    def _on_env_error(self, error: EnvError) -> None:
        """Handle an error raised by an environment."""

    def _on_ready(self, result: Any) -> None:
        """Handle the reply to the request that prepares new environments."""

    def _on_result(self, result: Any) -> None:
        command, arguments = self._command
        to_truncate = self._to_truncate
        if command == "step":
            stepped = self._stepped_places()
            if self._must_truncate():
                if self._truncated_outcome is None:
                    self._truncated_outcome = self._last_snapshot.restore(result)
                result = self._truncated_outcome
            self._last_snapshot.record_step(result, stepped)
            to_truncate = to_truncate.difference(stepped) if to_truncate else to_truncate
        elif command == "reset":
            (resets,) = arguments
            places = [place for place, *_ in resets]
            for place, seed, _ in resets:
                if seed is not None:
                    self.seeds[place] = seed, self.seeds[place][1]
            self._last_snapshot.record_reset(result, places)
            to_truncate = to_truncate.difference(places)
        elif command == "load_states":
            (places,) = arguments
            self._last_snapshot.record_reset(result, places)
            to_truncate = to_truncate.difference(places)  # the loaded episodes were not interrupted
        elif command == "set_attr":
            places, name, values = arguments
            for place, value in zip(places, values, strict=True):
                self._attributes[place, name] = value
        elif command == "watch_masks":
            self._watched.update(arguments[0])
        # No call in between, so that an interrupt finds either all of these updated or none.
        self._result, self._to_truncate, self._truncated_outcome = [result], to_truncate, None

    # -- worker failure ---------------------------------------------------------------

    def _on_failure(self, error: WorkerFailure) -> None:
        """Schedule a restart, or raise the error."""
        was_submitted = self._worker.tag == self.tag
        self._restarts.consume(error)
        self.seeds = [(seed, count + 1) for seed, count in self.seeds]
        self._worker_state = WorkerState.FAILED
        self._to_truncate = set() if self._can_resume(error) else set(range(self.hi - self.lo))
        if was_submitted and self._command[0] not in ("step", "reset"):
            if not isinstance(error, EnvError):
                error.restarted = True
            raise error

    def _can_resume(self, error: WorkerFailure) -> bool:
        """Return whether a restarted worker can continue the episodes."""
        return False

    def _restart_worker(self) -> None:
        """Restart the worker; can be repeated after an interrupt."""
        command, arguments = self._command
        tag, state = self.tag, WorkerState.RUNNING
        then: _Command
        if self._command == STEP_OF_ALL:
            then = self._reset_command()
        elif command == "reset":
            then = (
                "reset",
                ([(place, self._new_seed(place, seed), o) for place, seed, o in arguments[0]],),
            )
        else:
            then = "ready", (self._new_seeds(),)
            tag, state = PREPARING_TAG, WorkerState.PREPARING
        keywords = [
            {name: derived_seed(seed, self.seeds[place][1]) for name, seed in given.items()}
            for place, given in enumerate(self._keywords)
        ]
        self._backend.replace(
            self._index, tag, keywords, self._attributes, sorted(self._watched), then
        )
        self._worker_state = state

    def _reset_command(self) -> _Command:
        return "reset_after_restart", (
            self._new_seeds(),
            self._last_snapshot.infos(),
            self._stepped_places(),
        )

    def _new_seeds(self) -> list[int | None]:
        return [self._new_seed(place) for place in range(self.hi - self.lo)]

    def _new_seed(self, place: int, seed: int | None = None) -> int | None:
        """Derive a seed from the requested one or the last one used."""
        last, restarts = self.seeds[place]
        seed = last if seed is None else seed
        return None if seed is None else derived_seed(seed, restarts)
