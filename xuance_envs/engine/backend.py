"""Backends: the workers of one vectorized environment and their lifecycle."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.reward_rows import first_unstepped
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import CommonDriver, Driver
from xuance_envs.engine.group.outcome import STARTUP_COMMANDS, Autoreset
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.system.deadline import Deadline
from xuance_envs.errors import WorkerTimeoutError

CLOSE_TIMEOUT = 5.0  # seconds for closing environments; then workers except threads are ended
FAILED_CLOSE_TIMEOUT = 0.5  # used after a worker failed, so that its error is raised soon
FORCED_CLOSE_TIMEOUT = 1.0  # used after Ctrl-C, in finalizers and for worker restarts

Timeouts = tuple[float | None, float | None]  # for steps and other commands; for the start


class WorkerDriver(Driver):
    def __init__(self, lo: int, hi: int, timeouts: Timeouts = (None, None)) -> None:
        super().__init__(lo, hi)
        self.siblings: Sequence[Any] = ()
        self._timeouts = timeouts
        self.limits_steps = timeouts[0] is not None
        self._command = "start"
        self._deadline: Deadline | None = None
        self._rewards: NDArray[np.float64] | None = None

    @property
    @override
    def reply_deadline(self) -> float | None:
        return None if self._deadline is None else self._deadline.at

    def _begin(self, command: str, began: float | None = None) -> float | None:
        """Record a new request and return its deadline."""
        limit, self._command = self._timeouts[command in STARTUP_COMMANDS], command
        if limit is None:
            self._deadline = None
            return None
        self._deadline = deadline = Deadline(limit, began)
        return deadline.at

    def attach(self, arrays: StepArrays) -> None:
        """Set the arrays of the main process to which the group's results are written."""
        self._rewards = arrays.rewards

    def _running_env(self, place: int | None) -> int | None:
        """Return the running environment's index; ``place`` is its place in the group, if known."""
        if place is None and self._command == "step" and self._rewards is not None:
            place = first_unstepped(self._rewards)
        return None if place is None else self.lo + place

    def _hang_error(self, pid: int | None, env: int | None, details: str) -> WorkerTimeoutError:
        assert self._deadline is not None
        envs, command = range(self.lo, self.hi), display_name(self._command)
        return WorkerTimeoutError(envs, pid, self._deadline.limit, command, details, env)


_DISPLAY_NAMES = {"build": "construct", "rebuild": "restart", "reset_after_restart": "restart"}


def display_name(command: str) -> str:
    return _DISPLAY_NAMES.get(command, command)


_W = TypeVar("_W", bound=WorkerDriver)


class Backend(ABC, Generic[_W]):
    def __init__(self, split: Sequence[tuple[int, int]], recipe: Recipe, info_bytes: int) -> None:
        self.workers: list[_W] = []
        self.is_closing = False
        self.recipe = recipe
        self.info_bytes = info_bytes
        self._split = split
        self._spaces: StepSpaces
        self._arrays: StepArrays

    def start(self) -> None:
        for index in range(len(self._split)):
            self._start(index, self.workers.append)
        for worker in self.workers:
            worker.siblings = self.workers

    def build(self) -> None:
        """Submit to each worker the request to create its environments."""
        for worker in self.workers:
            self._submit_build(worker)
        if self.after_submit is not None:
            self.after_submit()

    def _submit_build(self, worker: _W) -> None:
        lo, hi = worker.lo, worker.hi
        keywords = self.recipe.keywords[lo:hi]
        worker.submit(0, worker.pack("build", *self._build_arguments(lo, hi, keywords)))

    def descriptions(self) -> list[tuple[int, EnvDescription]]:
        """Wait until all environments are created; return their indices and descriptions."""
        return [described for worker in self.workers for described in worker.result()]

    @property
    def envs(self) -> Sequence[Any]:
        """The workers' environments, if the workers run in this process."""
        return ()

    def attach(self, spaces: StepSpaces, arrays: StepArrays) -> None:
        self._spaces, self._arrays = spaces, arrays
        for worker in self.workers:
            worker.attach(arrays.slice(worker.lo, worker.hi))
            worker.submit(0, worker.pack("attach", *self._attach_arguments(worker.lo, worker.hi)))
        for worker in self.workers:
            worker.result()

    def replace(
        self,
        index: int,
        tag: int,
        keywords: Sequence[Mapping[str, Any]],
        attributes: Mapping[tuple[int, str], Any],
        watched: Sequence[int],
        then: tuple[str, Sequence[Any]],
    ) -> None:
        """Restart a worker; submit a command to rebuild its environments and run ``then``."""
        worker = self.restart(index)
        lo, hi = worker.lo, worker.hi
        worker.attach(self._arrays.slice(lo, hi))
        build, attach = self._build_arguments(lo, hi, keywords), self._attach_arguments(lo, hi)
        worker.submit(tag, worker.pack("rebuild", build, attach, attributes, watched, then))

    def restart(self, index: int) -> _W:
        """Restart a worker without submitting a command."""
        self._end(index)
        self._start(index, lambda worker: self.workers.__setitem__(index, worker))
        return self.workers[index]

    state_transfer = StateTransfer()  # of states too large for commands
    before_step: Callable[[], None] | None = None  # called before each step
    after_submit: Callable[[], None] | None = None  # called after commands were submitted

    def allocate(self, spaces: StepSpaces, num_envs: int, digests: bool = False) -> StepArrays:
        return StepArrays.allocate(spaces, num_envs, info_bytes=self.info_bytes, digests=digests)

    @abstractmethod
    def poller(self, drivers: Sequence[Driver]) -> Poller:
        """Return a poller over these drivers; some may be drivers of local groups."""

    def common_driver(self, drivers: Sequence[Driver]) -> CommonDriver | None:
        """Return a driver of all these groups at once, or None if there is none."""
        return None

    @abstractmethod
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None: ...

    def release(self) -> None:
        """Release the remaining resources after the workers have ended."""

    def register_finalizer(self, owner: Any) -> Callable[[], Any]:
        """Force shutdown when ``owner`` is garbage-collected or the interpreter exits."""
        return weakref.finalize(owner, end_and_release, self, os.getpid())

    @abstractmethod
    def _start(self, index: int, started: Callable[[_W], None]) -> None:
        """Start a worker and pass its driver to ``started``."""

    def _end(self, index: int) -> None:
        """Stop a worker that will be restarted."""
        raise NotImplementedError(f"{type(self).__name__} cannot restart workers")

    def _attach_arguments(self, lo: int, hi: int) -> tuple[Any, ...]:
        """Return a worker's arrays, or the arguments with which a worker process maps them."""
        return (self._arrays.slice(lo, hi),)

    def _functions(self, lo: int, hi: int) -> Any:
        """Return a worker's environment functions; subclasses may pickle them."""
        return self.recipe.env_fns[lo:hi]

    def _build_arguments(
        self, lo: int, hi: int, keywords: Sequence[Mapping[str, Any]]
    ) -> tuple[Any, Sequence[Mapping[str, Any]], int, Autoreset]:
        return self._functions(lo, hi), keywords, lo, self.recipe.autoreset


def end_and_release(backend: Backend[Any], owner: int) -> None:
    if os.getpid() == owner:  # a forked child has no workers to end
        try:
            backend.end(FORCED_CLOSE_TIMEOUT)
        finally:
            backend.release()
