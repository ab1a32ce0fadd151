"""A worker process that is replaced when it is lost.

A process is lost when it ends by itself or does not answer in time, and, where that is asked
for, when one of its environments raises. All of its environments are lost with it, and others
are made in their place.

- Lost in a step, or before one, they are reset, and this step is the last one of the lost
  episodes: truncated.
- Lost in a step of some, or before one, the same goes for these; the others' episodes are
  truncated by the next step that they are in, unless they are reset before.
- Lost in a reset, or before one, those in question are reset. If these are not all, the next
  step truncates the episodes of all.
- Lost in another command, that is an error, because nobody knows how far it came, and the next
  step truncates. Lost before it, they are reset and the command is done, and the next step
  truncates.

A process that is replaced is not waited for by any other: its successor has been asked to go on
from there, and its answer is that of the command it was lost in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import Backend, WorkerDriver
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, Seeding, derived_seed
from xuance_envs.engine.group.outcome import STATE_COMMANDS, Outcome
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.last_snapshot import LastSnapshot
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

__all__ = ["READY_TAG", "RestartPolicy", "RestartingDriver", "WorkerLoss"]

logger = logging.getLogger("xuance_envs")

_Command = tuple[str, Sequence[Any]]
_STEP: _Command = ("step", ())

_RESTARTABLE = ("step", "reset", "construct")
"""Where an exception may be a reason for a restart."""

READY_TAG = -1
"""The number of the request to make new environments ready, of which the caller knows nothing."""


WorkerLoss = EnvError | WorkerDiedError | WorkerTimeoutError


class RestartPolicy:
    """How many restarts there have been, and how many there may be."""

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

    def consume(self, error: WorkerLoss) -> None:
        """Counts one more."""
        if self._raises:
            raise error
        if self._limit is not None and self.count >= self._limit:
            used_up = f"no restart is left: max_restarts={self._limit} have been made"
            logger.error("%s", used_up)
            if isinstance(error, EnvError):
                error.reason = f"{error.reason} ({used_up})"
            else:
                error.details = f"{error.details}\n{used_up}".lstrip()
            raise error
        self.count += 1
        limit = "any number" if self._limit is None else str(self._limit)
        # Its text, because a handler that keeps the record would keep the arrays with the error.
        logger.warning("restart %d (of %s at most): %s", self.count, limit, str(error))


class RestartingDriver(Driver):
    """A group of environments in a worker that is replaced when it is lost."""

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
        self._needs_restart = False
        # The places of new environments whose last episodes have not been truncated.
        self._to_truncate: set[int] = set()
        self._command: _Command = _STEP
        self._packed: Any = None
        self._result: list[Any] = [None]
        self._truncated_outcome: Outcome | None = None
        self._worker.siblings = ()  # their end is no error

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
        self._command, self._packed, self._result, self.tag = _STEP, actions, [], tag
        self._submit_if_alive()

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[_Command, Any]:
        packed = self._worker.pack(command, *arguments)
        if command not in STATE_COMMANDS:  # whose arguments nobody changes
            arguments = copy_of(arguments)
        return (command, arguments), packed  # for a later process, as it is now

    @override
    def with_buffers(
        self, packed: tuple[_Command, Any], buffers: Sequence[Any]
    ) -> tuple[_Command, Any]:
        asked, message = packed
        return asked, self._worker.with_buffers(message, buffers)

    @override
    def submit(self, tag: int, packed: tuple[_Command, Any]) -> None:
        asked, message = packed
        self._command, self._packed, self._result, self.tag = asked, message, [], tag
        self._submit_if_alive()

    @override
    def result(self, deadline: float | None = None) -> Any:
        while not self._result:
            try:
                self._advance(deadline)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._on_lost(error)
            except EnvError as error:
                self._on_env_error(error)
                makes_ready = self._worker.tag == READY_TAG
                if not self._restarts.on_exception or not (
                    makes_ready or error.command in _RESTARTABLE
                ):
                    self._needs_restart = makes_ready  # to try again, if it is asked again
                    raise
                self._on_lost(error)
        return self._result[0]

    @override
    def thaw(self, frozen: bytes) -> Any:
        return self._worker.thaw(frozen)

    @override
    def times(self) -> StepTimes:
        return self._worker.times()

    def _submit_if_alive(self) -> None:
        # A step finds out by itself. Anything else is better not asked of a process that has ended:
        # nobody could tell that from one that ends because of it.
        if self._needs_restart or self._worker.tag == READY_TAG:
            return
        if self._command is _STEP or self._worker.alive:
            self._submit_to_worker()

    def _submit_to_worker(self) -> None:
        if self._must_truncate():
            command, arguments = self._reset_command()
            self._worker.submit(self.tag, self._worker.pack(command, *arguments))
        elif self._command is _STEP:
            self._worker.submit_step(self.tag, self._packed)
        else:
            self._worker.submit(self.tag, self._packed)

    def _must_truncate(self) -> bool:
        """Whether what was asked for is a step that is to truncate episodes."""
        is_step = self._command[0] == "step"
        return (
            is_step
            and bool(self._to_truncate)
            and not self._to_truncate.isdisjoint(self._stepped_places())
        )

    def _stepped_places(self) -> Sequence[int]:
        """The places of the environments that the step that was asked for is of."""
        _, arguments = self._command
        places: Sequence[int] = arguments[2] if arguments else range(self.hi - self.lo)
        return places

    def _advance(self, deadline: float | None) -> None:
        """Waits for the process, and takes its answer in; goes on from any interrupt."""
        if self._needs_restart:
            self._restart_worker()
        worker = self._worker
        if worker.tag == READY_TAG:
            self._on_ready(worker.result(deadline))
            self._submit_to_worker()
        elif worker.tag != self.tag:
            if not worker.alive:
                raise worker.death_error()
            self._submit_to_worker()
        self._on_result(worker.result(deadline))

    def _on_env_error(self, error: EnvError) -> None:
        """Is told of an error that an environment raised."""

    def _on_ready(self, result: Any) -> None:
        """Is told what came of making another worker ready."""

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
            to_truncate = to_truncate.difference(places)  # what they are in now has not been lost
        elif command == "set_attr":
            places, name, values = arguments
            for place, value in zip(places, values, strict=True):
                self._attributes[place, name] = value
        elif command == "watch_masks":
            self._watched.update(arguments[0])
        # No call in between, so that an interrupt finds all or nothing of it done.
        self._result, self._to_truncate, self._truncated_outcome = [result], to_truncate, None

    # -- when it is lost --------------------------------------------------------------

    def _on_lost(self, error: WorkerLoss) -> None:
        """Lets another process take over."""
        asked = self._worker.tag == self.tag
        self._restarts.consume(error)
        self.seeds = [(seed, count + 1) for seed, count in self.seeds]
        self._needs_restart = True
        self._to_truncate = set() if self._can_resume() else set(range(self.hi - self.lo))
        if asked and self._command[0] not in ("step", "reset"):
            if not isinstance(error, EnvError):
                error.restarted = True
            raise error

    def _can_resume(self) -> bool:
        """Whether what a worker was in is not lost with it."""
        return False

    def _restart_worker(self) -> None:
        """Starts the other process; can be repeated when an interrupt came in between."""
        command, arguments = self._command
        tag = self.tag
        then: _Command
        if self._command == _STEP:
            then = self._reset_command()
        elif command == "reset":
            then = (
                "reset",
                ([(place, self._new_seed(place, seed), o) for place, seed, o in arguments[0]],),
            )
        else:
            then, tag = ("ready", (self._new_seeds(),)), READY_TAG
        keywords = [
            {name: self._derived(place, seed) for name, seed in given.items()}
            for place, given in enumerate(self._keywords)
        ]
        self._backend.replace(
            self._index, tag, keywords, self._attributes, sorted(self._watched), then
        )
        self._needs_restart = False

    def _reset_command(self) -> _Command:
        return "reset_after_restart", (
            self._new_seeds(),
            self._last_snapshot.infos(),
            self._stepped_places(),
        )

    def _new_seeds(self) -> list[int | None]:
        return [self._new_seed(place) for place in range(self.hi - self.lo)]

    def _new_seed(self, place: int, seed: int | None = None) -> int | None:
        """Derived from what an environment is to be seeded with, or was last."""
        seed = self.seeds[place][0] if seed is None else seed
        return None if seed is None else self._derived(place, seed)

    def _derived(self, place: int, seed: int) -> int:
        return derived_seed(seed, self.seeds[place][1])
