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

from xuance_envs.engine.backend import Backend, WorkerDriver
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, Seeding, derived_seed
from xuance_envs.engine.group.outcome import OF_STATES, Outcome
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.last_known import LastKnown
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

__all__ = ["READY", "Loss", "RestartingDriver", "Restarts"]

logger = logging.getLogger("xuance_envs")

_Command = tuple[str, Sequence[Any]]
_STEP: _Command = ("step", ())

_LOSING = ("step", "reset", "construct")
"""Where an exception may be a reason for a restart."""

READY = -1
"""The number of the request to make new environments ready, of which the caller knows nothing."""


Loss = EnvError | WorkerDiedError | WorkerTimeoutError


class Restarts:
    """How many restarts there have been, and how many there may be.

    Args:
        limit: how many there may be; None for any number.
        on_exception: whether an exception in an environment is a reason for one.
        resumes: whether nothing is to be lost with a worker.
        raises: whether there are none at all: what they are asked for raises.
    """

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

    def take(self, error: Loss) -> None:
        """Counts one more.

        Raises:
            Exception: the reason for it, if there may be no more.
        """
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
    """A group of environments in a worker that is replaced when it is lost.

    Args:
        backend: what starts its workers.
        index: which worker of the vector environment it is.
        keywords: keyword arguments for the functions of its environments: seeds.
        arrays: the group's slice of the step's arrays.
        restarts: of all workers together.
    """

    tag = 0

    def __init__(
        self,
        backend: Backend[Any],
        index: int,
        keywords: Sequence[Mapping[str, int]],
        arrays: StepArrays,
        restarts: Restarts,
    ) -> None:
        self._backend = backend
        self._index = index
        super().__init__(self._worker.lo, self._worker.hi)
        self._keywords = keywords
        self._restarts = restarts
        self._arrays = arrays
        self._last_known = LastKnown(arrays)
        self.seeds: list[Seeding] = [(None, 0)] * (self.hi - self.lo)
        self._attributes: dict[tuple[int, str], Any] = {}
        self._watched: set[int] = set()
        self._to_replace = False
        # The places of new environments whose last episodes have not been truncated.
        self._owed: set[int] = set()
        self._asked: _Command = _STEP
        self._packed: Any = None
        self._result: list[Any] = [None]
        self._revived: Outcome | None = None
        self._worker.siblings = ()  # their end is no error

    @property
    def _worker(self) -> WorkerDriver:
        worker: WorkerDriver = self._backend.workers[self._index]
        return worker

    @property
    def fds(self) -> tuple[int, ...]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.fds

    @property
    def due(self) -> float | None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.due

    def pack_actions(self, actions: list[list[Any]]) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.pack_actions(actions)

    def ask_step(self, tag: int, actions: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        self._asked, self._packed, self._result, self.tag = _STEP, actions, [], tag
        self._ask_if_there()

    def pack(self, command: str, *arguments: Any) -> tuple[_Command, Any]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        packed = self._worker.pack(command, *arguments)
        if command not in OF_STATES:  # whose arguments nobody changes
            arguments = copy_of(arguments)
        return (command, arguments), packed  # for a later process, as it is now

    def lending(self, packed: tuple[_Command, Any], lent: Sequence[Any]) -> tuple[_Command, Any]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        asked, message = packed
        return asked, self._worker.lending(message, lent)

    def ask(self, tag: int, packed: tuple[_Command, Any]) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        asked, message = packed
        self._asked, self._packed, self._result, self.tag = asked, message, [], tag
        self._ask_if_there()

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        while not self._result:
            try:
                self._go_on(deadline)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._lose(error)
            except EnvError as error:
                self._raised(error)
                makes_ready = self._worker.tag == READY
                if not self._restarts.on_exception or not (makes_ready or error.command in _LOSING):
                    self._to_replace = makes_ready  # to try again, if it is asked again
                    raise
                self._lose(error)
        return self._result[0]

    def thaw(self, frozen: bytes) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.thaw(frozen)

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.times()

    def _ask_if_there(self) -> None:
        # A step finds out by itself. Anything else is better not asked of a process that has ended:
        # nobody could tell that from one that ends because of it.
        if self._to_replace or self._worker.tag == READY:
            return
        if self._asked is _STEP or self._worker.alive:
            self._ask_worker()

    def _ask_worker(self) -> None:
        if self._owes_ends():
            command, arguments = self._revival()
            self._worker.ask(self.tag, self._worker.pack(command, *arguments))
        elif self._asked is _STEP:
            self._worker.ask_step(self.tag, self._packed)
        else:
            self._worker.ask(self.tag, self._packed)

    def _owes_ends(self) -> bool:
        """Whether what was asked for is a step that is to truncate episodes."""
        is_step = self._asked[0] == "step"
        return is_step and bool(self._owed) and not self._owed.isdisjoint(self._stepped())

    def _stepped(self) -> Sequence[int]:
        """The places of the environments that the step that was asked for is of."""
        _, arguments = self._asked
        places: Sequence[int] = arguments[2] if arguments else range(self.hi - self.lo)
        return places

    def _go_on(self, deadline: float | None) -> None:
        """Waits for the process, and takes its answer in; goes on from any interrupt."""
        if self._to_replace:
            self._replace()
        worker = self._worker
        if worker.tag == READY:
            self._made_ready(worker.result(deadline))
            self._ask_worker()
        elif worker.tag != self.tag:
            if not worker.alive:
                raise worker.death()
            self._ask_worker()
        self._take(worker.result(deadline))

    def _raised(self, error: EnvError) -> None:
        """Is told of an error that an environment raised."""

    def _made_ready(self, result: Any) -> None:
        """Is told what came of making another worker ready."""

    def _take(self, result: Any) -> None:
        command, arguments = self._asked
        owed = self._owed
        if command == "step":
            stepped = self._stepped()
            if self._owes_ends():
                if self._revived is None:
                    self._revived = self._last_known.restored(result)
                result = self._revived
            self._last_known.take_step(result, stepped)
            owed = owed.difference(stepped) if owed else owed
        elif command == "reset":
            (resets,) = arguments
            places = [place for place, *_ in resets]
            for place, seed, _ in resets:
                if seed is not None:
                    self.seeds[place] = seed, self.seeds[place][1]
            self._last_known.take_reset(result, places)
            owed = owed.difference(places)
        elif command == "load_states":
            (places,) = arguments
            self._last_known.take_reset(result, places)
            owed = owed.difference(places)  # what they are in now has not been lost
        elif command == "set_attr":
            places, name, values = arguments
            for place, value in zip(places, values, strict=True):
                self._attributes[place, name] = value
        elif command == "watch_masks":
            self._watched.update(arguments[0])
        # No call in between, so that an interrupt finds all or nothing of it done.
        self._result, self._owed, self._revived = [result], owed, None

    # -- when it is lost --------------------------------------------------------------

    def _lose(self, error: Loss) -> None:
        """Lets another process take over.

        Raises:
            Exception: the error, if there may be no more restarts, or if nobody knows how far
                the command came.
        """
        asked = self._worker.tag == self.tag
        self._restarts.take(error)
        self.seeds = [(seed, count + 1) for seed, count in self.seeds]
        self._to_replace = True
        self._owed = set() if self._loses_nothing() else set(range(self.hi - self.lo))
        if asked and self._asked[0] not in ("step", "reset"):
            if not isinstance(error, EnvError):
                error.restarted = True
            raise error

    def _loses_nothing(self) -> bool:
        """Whether what a worker was in is not lost with it."""
        return False

    def _replace(self) -> None:
        """Starts the other process; can be repeated when an interrupt came in between."""
        command, arguments = self._asked
        tag = self.tag
        then: _Command
        if self._asked == _STEP:
            then = self._revival()
        elif command == "reset":
            then = (
                "reset",
                ([(place, self._new_seed(place, seed), o) for place, seed, o in arguments[0]],),
            )
        else:
            then, tag = ("ready", (self._new_seeds(),)), READY
        keywords = [
            {name: self._derived(place, seed) for name, seed in given.items()}
            for place, given in enumerate(self._keywords)
        ]
        self._backend.replace(
            self._index, tag, keywords, self._attributes, sorted(self._watched), then
        )
        self._to_replace = False

    def _revival(self) -> _Command:
        return "revive", (self._new_seeds(), self._last_known.infos(), self._stepped())

    def _new_seeds(self) -> list[int | None]:
        return [self._new_seed(place) for place in range(self.hi - self.lo)]

    def _new_seed(self, place: int, seed: int | None = None) -> int | None:
        """Derived from what an environment is to be seeded with, or was last."""
        seed = self.seeds[place][0] if seed is None else seed
        return None if seed is None else self._derived(place, seed)

    def _derived(self, place: int, seed: int) -> int:
        return derived_seed(seed, self.seeds[place][1])
