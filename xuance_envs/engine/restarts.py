"""A worker process that is replaced when it is lost.

A process is lost when it ends by itself or does not answer in time, and, where that is asked
for, when one of its environments raises. All of its environments are lost with it.

- Lost in a step, they are made anew and reset, and the step they were lost in is the last one
  of their episodes: truncated.
- Lost in a reset, they are made anew and those in question are reset. For the others, and for
  all that are lost in another command, the next step is the one that counts as truncated.

A process that is replaced is not waited for by any other: its successor has been asked to go on
from there, and its answer is that of the command it was lost in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from xuance_envs.engine.env_group import Outcome
from xuance_envs.engine.last_known import LastKnown
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.engine.step_clock import StepTimes
from xuance_envs.engine.worker_process import WorkerProcess
from xuance_envs.engine.workers import Workers
from xuance_envs.errors import EnvError, WorkerDiedError, WorkerTimeoutError

__all__ = ["RestartingWorker", "Restarts"]

logger = logging.getLogger("xuance_envs")

_Command = tuple[str, Sequence[Any]]
_STEP: _Command = ("step", ())


class Restarts:
    """How many restarts there have been, and how many there may be.

    Args:
        limit: how many there may be; None for any number.
        on_exception: whether an exception in an environment is a reason for one.
    """

    def __init__(self, limit: int | None, on_exception: bool) -> None:
        self.count = 0
        self.on_exception = on_exception
        self._limit = limit

    def take(self, error: Exception) -> None:
        """Counts one more.

        Raises:
            Exception: the reason for it, if there may be no more.
        """
        if self._limit is not None and self.count >= self._limit:
            used_up = f"no restart is left: max_restarts={self._limit} have been made"
            logger.error("%s", used_up)
            if isinstance(error, WorkerDiedError | WorkerTimeoutError):
                error.details = f"{error.details}\n{used_up}".lstrip()
            raise error
        self.count += 1
        limit = "any number" if self._limit is None else str(self._limit)
        logger.warning("restart %d (of %s at most): %s", self.count, limit, error)


class RestartingWorker:
    """A group of environments in a worker process that is replaced when it is lost; a driver.

    Args:
        workers: what starts its processes.
        index: which worker of the vector environment it is.
        keywords: keyword arguments for the functions of its environments: seeds.
        arrays: the group's slice of the step's arrays.
        restarts: of all workers together.
        replaced: called with the index and the process id of each new process.
    """

    def __init__(
        self,
        workers: Workers,
        index: int,
        keywords: Sequence[Mapping[str, int]],
        arrays: StepArrays,
        restarts: Restarts,
        replaced: Callable[[int, int], None],
    ) -> None:
        self._workers = workers
        self._index = index
        self.lo = self._worker.lo
        self.hi = self._worker.hi
        self.tag = self._worker.tag
        self._keywords = keywords
        self._restarts = restarts
        self._replaced = replaced
        self._last_known = LastKnown(arrays)
        self._seeds: list[int | None] = [None] * (self.hi - self.lo)
        self._attributes: dict[tuple[int, str], Any] = {}
        self._count = 0
        self._owes_end = False
        # What was asked for, and what the process was asked for because of it.
        self._asked: _Command = _STEP
        self._packed: Any = None
        self._sent: _Command | None = _STEP
        self._to_replace = False
        self._result: list[Any] = []

    @property
    def _worker(self) -> WorkerProcess:
        return self._workers.processes[self._index]

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
        self.tag, self._asked, self._packed, self._result = tag, _STEP, actions, []
        self._send()

    def pack(self, command: str, *arguments: Any) -> tuple[_Command, Any]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return (command, arguments), self._worker.pack(command, *arguments)

    def ask(self, tag: int, packed: tuple[_Command, Any]) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        asked, message = packed
        self.tag, self._asked, self._packed, self._result = tag, asked, message, []
        self._send()

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        while not self._result:
            try:
                self._go_on(deadline)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._lose(error)
            except EnvError as error:
                if not self._restarts.on_exception or error.command not in _LOSING:
                    raise
                self._lose(error)
        return self._result[0]

    def discard(self) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        try:
            return self.result()
        except Exception:
            return None

    def thaw(self, frozen: bytes) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.thaw(frozen)

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._worker.times()

    def _send(self) -> None:
        """Asks the process for what was asked for, unless it is being replaced."""
        if self._to_replace or self._sent is None:  # it is, and asked when it is there
            return
        if self._asked is _STEP:
            if self._owes_end:
                self._sent = self._revival()
                self._worker.ask(self.tag, self._worker.pack(*_flat(self._sent)))
            else:
                self._sent = _STEP
                self._worker.ask_step(self.tag, self._packed)
        else:
            self._sent = self._asked
            self._worker.ask(self.tag, self._packed)

    def _go_on(self, deadline: float | None) -> None:
        """Waits for the process, and takes its answer in."""
        if self._to_replace:
            self._replace()
        result = self._worker.result(deadline)
        if self._sent is None:  # it has been replaced, and now it can be asked
            self._sent = _STEP
            self._send()
            return
        command, arguments = self._sent
        if command == "revive":
            result = self._last_known.restored(result)
            self._owes_end = False
        if isinstance(result, Outcome):
            if command == "reset":
                self._take_reset(result, arguments[0])
            else:
                self._last_known.take_step(result)
        elif command == "set_attr":
            places, name, values = arguments
            for place, value in zip(places, values, strict=True):
                self._attributes[place, name] = value
        self._result = [result]

    def _take_reset(self, outcome: Outcome, resets: Sequence[tuple[int, Any, Any]]) -> None:
        for place, seed, _ in resets:
            if seed is not None:
                self._seeds[place] = seed
        places = [place for place, *_ in resets]
        self._last_known.take_reset(outcome, places)
        if len(places) == self.hi - self.lo:
            self._owes_end = False

    # -- when it is lost --------------------------------------------------------------

    def _lose(self, error: EnvError | WorkerDiedError | WorkerTimeoutError) -> None:
        """Lets another process take over.

        Raises:
            Exception: the error, if there may be no more restarts, or if the command cannot
                be done by another process.
        """
        self._restarts.take(error)
        self._count += 1
        self._to_replace = True
        command, _ = self._asked
        self._owes_end = True
        if command in ("step", "reset"):
            self._replace()
            return
        if not isinstance(error, EnvError):
            error.restarted = True
        raise error

    def _replace(self) -> None:
        """Starts the other process; can be repeated when an interrupt came in between."""
        command, arguments = self._asked
        if command == "step":
            self._sent = self._revival()
        elif command == "reset":
            resets = [
                (place, self._derived(seed), options) for place, seed, options in arguments[0]
            ]
            self._sent = ("reset", (resets,))
        else:
            self._sent = None
        keywords = [
            {name: self._derived(seed) for name, seed in given.items()} for given in self._keywords
        ]
        self._workers.replace(self._index, keywords, self._attributes, self._sent)
        self._to_replace = False
        self._replaced(self._index, self._worker.pid)

    def _revival(self) -> _Command:
        seeds = [self._derived(seed) for seed in self._seeds]
        return "revive", (seeds, self._last_known.infos())

    @overload
    def _derived(self, seed: int) -> int: ...
    @overload
    def _derived(self, seed: int | None) -> int | None: ...
    def _derived(self, seed: int | None) -> int | None:
        """A new seed: with the old one, a crash that follows from it would come for ever."""
        if seed is None:
            return None
        return int(np.random.SeedSequence((seed % 2**64, self._count)).generate_state(1)[0])


_LOSING = ("step", "reset", "construct")


def _flat(command: _Command) -> tuple[Any, ...]:
    return command[0], *command[1]
