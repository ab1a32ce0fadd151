"""Worker restarts: a failed worker is replaced, and its environments are created again.

A worker fails when its process ends, when it exceeds a timeout or, if requested, when one of its
environments raises. The driver's reaction depends on the command that failed, or on the first
command after the failure:

- Step: the environments are reset, and the step reports their episodes as truncated.
- Step of some environments: these are reset, and their episodes reported as truncated. The worker's
  other environments have lost their episodes, too. If the next step includes one that was not
  reset, the episodes of all environments of the worker that take part in this step are truncated.
- Reset: the given environments are reset. Other environments of the worker are treated as above.
- Any other command: if the worker failed during the command, the command raises, because it may
  have partially executed. If the worker had failed before, the command runs on the reset
  environments. In both cases, the next step truncates the episodes, except in environments that
  were reset or loaded in between. Until then, their states cannot be saved.

Other workers finish their commands meanwhile, but a step returns only after the restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from operator import attrgetter
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import Backend
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import SavingDriver
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.outcome import STATE_COMMANDS, Outcome, ResultWithStates
from xuance_envs.engine.group.recipe import Seeding, derived_seed
from xuance_envs.engine.group.resumable_group import NotResumed
from xuance_envs.engine.recovery import (
    Command,
    NotResumedError,
    Recording,
    RestartPolicy,
    WorkerFailure,
)
from xuance_envs.engine.replay_log import LastSnapshot
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import EnvError, StateError, WorkerDiedError, WorkerTimeoutError

_STEP_OF_ALL: Command = ("step", ())

# Commands in which an environment's exception may trigger a restart.
_RESTARTABLE = ("step", "reset", "construct")

# Error reason: the new environment is not in the state that its last observation shows.
_NOT_TRUNCATED = (
    "its worker was restarted, and the next step will truncate its episode; step or reset it first"
)

_PREPARING_TAG = -1  # of the request that prepares new environments; the ledger has no such tag


class WorkerState(Enum):
    RUNNING = auto()  # it has the current request, or can accept it
    FAILED = auto()  # the next wait for a result replaces the worker
    PREPARING = auto()  # a new worker prepares its environments; then it gets the current request


class RestartingDriver(SavingDriver):
    """Driver that restarts its worker when it fails; with a recording, the worker may resume."""

    tag = 0

    def __init__(
        self,
        backend: Backend[Any],
        index: int,
        arrays: StepArrays,
        restarts: RestartPolicy,
        recording: Recording | None = None,
    ) -> None:
        self._backend = backend
        self._index = index
        super().__init__(self._worker.lo, self._worker.hi)
        self._recipe = backend.recipe.part(self.lo, self.hi)  # of the worker's environments
        self._restarts = restarts
        self._recording = recording
        # A replay log with results uses the snapshot's copies, so these must include the actions.
        actions = recording.log.actions if recording is not None and restarts.resumes else ()
        self.last_snapshot = LastSnapshot(arrays, actions)
        self.seeds: list[Seeding] = [(None, 0)] * (self.hi - self.lo)
        self._attributes: dict[tuple[int, str], tuple[Any, AttributeSetter | None]] = {}
        self._watched: set[int] = set()
        self._worker_state = WorkerState.RUNNING
        self._recovering = False  # True from a failure until the new worker's first reply
        self._to_truncate: set[int] = set()  # places whose previous episodes must be truncated
        self._command: Command = _STEP_OF_ALL
        self._packed: Any = None  # the command, for submit_step or submit
        self._by_submit_step = True
        self._result: list[Any] = [None]
        self._truncated_outcome: Outcome | None = None
        self._worker.siblings = ()  # the end of another worker must not raise here

    @property
    def _worker(self) -> Any:
        return self._backend.workers[self._index]

    fds: Any = property(attrgetter("_worker.fds"))
    reply_deadline: Any = property(attrgetter("_worker.reply_deadline"))
    limits_steps: Any = property(attrgetter("_worker.limits_steps"))
    pack_actions: Any = property(attrgetter("_worker.pack_actions"))
    thaw: Any = property(attrgetter("_worker.thaw"))
    times: Any = property(attrgetter("_worker.times"))

    @property
    @override
    def can_save(self) -> bool:  # type: ignore[override]  # read-only here
        return not self._to_truncate

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        self._begin(tag, _STEP_OF_ALL, actions, by_submit_step=True)

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[Command, Any]:
        packed = self._worker.pack(command, *arguments)
        if command not in STATE_COMMANDS:  # their arguments are never shared
            arguments = copy_of(arguments)
        return (command, arguments), packed  # the arguments are for a restarted worker

    @override
    def with_buffers(self, packed: Any, buffers: Sequence[Any]) -> tuple[Command, Any]:
        call, message = packed
        return call, self._worker.with_buffers(message, buffers)

    @override
    def submit(self, tag: int, packed: tuple[Command, Any]) -> None:
        self._begin(tag, *packed, by_submit_step=False)

    @override
    def submit_and_save(self, tag: int, packed: tuple[Command, Any] | None, *how: Any) -> None:
        call = _STEP_OF_ALL if packed is None else packed[0]
        message = self._worker.pack("run_and_save", *call, *how)
        # Errors name the original command.
        self.submit(tag, (call, message._replace(command=call[0])))

    @override
    def result(self, deadline: float | None = None) -> Any:
        while not self._result:
            try:
                self._advance(deadline)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._on_failure(error)
            except EnvError as error:
                preparing = self._worker_state is WorkerState.PREPARING
                may_restart = preparing or error.command in _RESTARTABLE
                if not (self._restarts.on_exception and may_restart):
                    if preparing:  # the next request tries again
                        self._worker_state = WorkerState.FAILED
                    raise
                self._on_failure(error)
        return self._result[0]

    def _begin(self, tag: int, command: Command, packed: Any, by_submit_step: bool) -> None:
        self._command, self._packed, self._by_submit_step = command, packed, by_submit_step
        self._result, self.tag = [], tag
        # A step detects by itself that the worker has ended. Other commands must not be submitted
        # to an ended worker, because they would seem to have caused its end.
        is_running = self._worker_state is WorkerState.RUNNING
        if is_running and (self._by_submit_step or self._worker.alive):
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
        if self._command[0] != "step" or not self._to_truncate:
            return False
        return not self._to_truncate.isdisjoint(self._stepped_places())

    def _stepped_places(self) -> Sequence[int]:
        """Return the positions of the environments that the current step includes."""
        _, arguments = self._command
        places: Sequence[int] = arguments[2] if arguments else range(self.hi - self.lo)
        return places

    def _advance(self, deadline: float | None) -> None:
        """Wait for the worker's reply and process it; this can be repeated after an interrupt."""
        if self._worker_state is WorkerState.FAILED:
            self._restart_worker()
        worker = self._worker
        if self._worker_state is WorkerState.PREPARING:
            self._check_resumed(worker.result(deadline))
            self._worker_state = WorkerState.RUNNING
            self._submit_to_worker()
        elif worker.tag != self.tag:
            if not worker.alive:
                raise worker.death_error()
            self._submit_to_worker()
        result = worker.result(deadline)
        if self._recovering:
            self._check_resumed(result)
        self._on_result(result)

    def _check_resumed(self, result: Any) -> None:
        """End the recovery, or raise if the new worker could not resume."""
        if isinstance(result, NotResumed):
            envs = range(self.lo, self.hi)
            raise NotResumedError(envs, None, None, self._command[0], result.reason)
        if self._recording is not None:
            self._recording.tried = False
        self._recovering = False

    def _on_result(self, reply: Any) -> None:
        command, arguments = self._command
        result = reply.result if isinstance(reply, ResultWithStates) else reply
        to_truncate = self._to_truncate
        if command == "step":
            stepped = self._stepped_places()
            if self._must_truncate():
                if self._truncated_outcome is None:
                    self._truncated_outcome = self.last_snapshot.restore(result)
                result = reply = self._truncated_outcome
            self.last_snapshot.record_step(result, stepped)
            to_truncate = to_truncate.difference(stepped) if to_truncate else to_truncate
        elif command == "reset":
            (resets,) = arguments
            places = [place for place, *_ in resets]
            for place, seed, _ in resets:
                if seed is not None:
                    self.seeds[place] = seed, self.seeds[place][1]
            self.last_snapshot.record_reset(result, places)
            to_truncate = to_truncate.difference(places)
        elif command == "save_states" and (lost := to_truncate.intersection(arguments[0])):
            raise StateError(self.lo + min(lost), "save_state", _NOT_TRUNCATED)
        elif command == "load_states":
            (places,) = arguments
            self.last_snapshot.record_reset(result, places)
            to_truncate = to_truncate.difference(places)  # the loaded episodes were not interrupted
        elif command == "set_attr":
            places, name, values = arguments
            for place, value in zip(places, values, strict=True):
                self._attributes.pop(
                    (place, name), None
                )  # new workers repeat the last calls' order
                self._attributes[place, name] = value, None
        elif command == "apply" and isinstance(arguments[1], AttributeSetter):
            places, setter, values = arguments
            for place, (name, value) in zip(places, values, strict=True):
                self._attributes.pop((place, name), None)
                self._attributes[place, name] = value, setter
        elif command == "watch_masks":
            self._watched.update(arguments[0])
        # No call in between, so that an interrupt finds either all of these updated or none.
        self._result, self._to_truncate, self._truncated_outcome = [reply], to_truncate, None

    # -- worker failure ---------------------------------------------------------------

    def _on_failure(self, error: WorkerFailure) -> None:
        """Schedule a restart, or raise the error."""
        if self._backend.is_closing:
            raise error
        was_submitted = self._worker.tag == self.tag
        recording, envs = self._recording, range(self.lo, self.hi)
        if recording is not None:
            recording.write_error(error, self.tag, self._command[0])
        self._restarts.consume(error)
        self.seeds = [(seed, count + 1) for seed, count in self.seeds]
        resumes = recording is not None and recording.plan(error, envs, bool(self._to_truncate))
        to_truncate = set() if resumes else set(range(len(envs)))
        # No call in between, so that an interrupt finds either all of these updated or none.
        self._worker_state, self._recovering = WorkerState.FAILED, True
        self._to_truncate = to_truncate
        if was_submitted and self._command[0] not in ("step", "reset"):
            if not isinstance(error, EnvError):
                error.restarted = True
            raise error

    def _restart_worker(self) -> None:
        """Restart the worker; this can be repeated after an interrupt."""
        command, arguments = self._command
        tag, state = self.tag, WorkerState.RUNNING
        then: Command
        recording, resumes = self._recording, not self._to_truncate
        if recording is not None and resumes:
            repeated = self._command if command in ("step", "reset") else None
            then = recording.resume_command(repeated)
            if repeated is None:
                tag, state = _PREPARING_TAG, WorkerState.PREPARING
        elif self._command == _STEP_OF_ALL:
            then = self._reset_command()
        elif command == "reset":
            resets = [(place, self._new_seed(place, seed), o) for place, seed, o in arguments[0]]
            then = "reset", (resets,)
        else:
            then = "ready", (self._new_seeds(),)
            tag, state = _PREPARING_TAG, WorkerState.PREPARING
        if not resumes:
            keywords = [
                {name: derived_seed(seed, self.seeds[place][1]) for name, seed in given.items()}
                for place, given in enumerate(self._backend.recipe.keywords[self.lo : self.hi])
            ]
            self._recipe = replace(self._recipe, keywords=keywords)
            if recording is not None:
                recording.recipe = self._recipe
        setup = self._recipe.keywords, self._attributes, sorted(self._watched)
        self._backend.replace(self._index, tag, *setup, then)
        self._worker_state = state

    def _reset_command(self) -> Command:
        arguments = self._new_seeds(), self.last_snapshot.infos(), self._stepped_places()
        return "reset_after_restart", arguments

    def _new_seeds(self) -> list[int | None]:
        return [self._new_seed(place) for place in range(self.hi - self.lo)]

    def _new_seed(self, place: int, seed: int | None = None) -> int | None:
        """Derive a seed from the requested seed or the last used seed."""
        last, restarts = self.seeds[place]
        seed = last if seed is None else seed
        return None if seed is None else derived_seed(seed, restarts)
