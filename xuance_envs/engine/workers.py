"""The worker processes of one vector environment: how each is started, and started again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xuance_envs.engine.env_group import Autoreset
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.engine.single_env import EnvDescription
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.engine.worker_process import (
    StartSettings,
    WorkerProcess,
    end_all,
    start_worker,
)

__all__ = ["Workers"]

PATIENCE = 1.0
"""Seconds a process that is replaced because an environment raised has to close the others."""


class Workers:
    """Starts worker processes, and has them make their environments.

    Args:
        settings: how they start.
        split: index of the first environment and index after the last, of each.
        env_fns: makes an environment each; those of all workers.
        keywords: keyword arguments for each function.

    Attributes:
        processes (list[WorkerProcess]): those that have been started.
    """

    def __init__(
        self,
        settings: StartSettings,
        split: Sequence[tuple[int, int]],
        env_fns: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
    ) -> None:
        self.processes: list[WorkerProcess] = []
        self._settings = settings
        self._split = split
        self._env_fns = env_fns
        self._keywords = keywords
        self._forked = settings.context.get_start_method() == "fork"
        self._attached: tuple[Any, int] | None = None

    def start(self) -> None:
        """Starts all of them.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        for index in range(len(self._split)):
            self._start(index, self.processes.append)
        for worker in self.processes:
            worker.siblings = self.processes

    def build(self) -> None:
        """Asks each to make its environments.

        Raises:
            TypeError: a function cannot be pickled.
        """
        for worker in self.processes:
            lo, hi = worker.lo, worker.hi
            packed = worker.pack("build", *self._recipe(lo, hi, self._keywords[lo:hi]))
            worker.ask(0, packed)

    def descriptions(self) -> list[tuple[int, EnvDescription]]:
        """Waits until they have made their environments, and tells what these are like.

        Raises:
            EnvError: a function raised, or what it returned is no environment.
            WorkerDiedError: one ended.
            WorkerTimeoutError: one took too long.
        """
        return [described for worker in self.processes for described in worker.result()]

    def attach(self, spaces: tuple[Any, Any], num_envs: int, arrays: StepArrays) -> None:
        """Gives each its slice of the arrays."""
        self._attached = (spaces, num_envs)
        for worker in self.processes:
            worker.ask(0, worker.pack("attach", *self._attached, worker.lo, worker.hi))
            worker.rewards = arrays.rewards[worker.lo : worker.hi]
        for worker in self.processes:
            worker.result()

    def replace(
        self,
        index: int,
        tag: int,
        keywords: Sequence[Mapping[str, Any]],
        attributes: Mapping[tuple[int, str], Any],
        then: tuple[str, Sequence[Any]],
    ) -> None:
        """Starts another process in the place of one, and asks it to go on.

        Args:
            index: which one.
            tag: number of the request.
            keywords: keyword arguments for the functions of its environments.
            attributes: what had been set, by the environment's place and the attribute's name.
            then: a command and its arguments; its result is that of the request.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        assert self._attached is not None
        old = self.processes[index]
        end_all([old], PATIENCE)
        self._start(index, lambda worker: self.processes.__setitem__(index, worker))
        worker = self.processes[index]
        worker.rewards = old.rewards
        lo, hi = worker.lo, worker.hi
        build, attach = self._recipe(lo, hi, keywords), (*self._attached, lo, hi)
        worker.ask(tag, worker.pack("rebuild", build, attach, attributes, then))

    def _start(self, index: int, started: Callable[[WorkerProcess], None]) -> None:
        lo, hi = self._split[index]
        inherited = self._env_fns[lo:hi] if self._forked else None
        try:
            start_worker(self._settings, index, lo, hi, inherited, started)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
                raise
            raise OSError(
                error.errno,
                f"{error.strerror}: could not start worker {index + 1} of "
                f"{len(self._split)}, each of which takes a process and up to five descriptors. "
                "Raise the limits (ulimit -n, ulimit -u), or have more environments share a "
                "worker with in_series",
            ) from error

    def _recipe(
        self, lo: int, hi: int, keywords: Sequence[Mapping[str, Any]]
    ) -> tuple[bytes | None, Sequence[Mapping[str, Any]], int, Autoreset]:
        """What a worker makes its environments from."""
        pickled = None if self._forked else _pickled(self._env_fns[lo:hi], lo)
        return pickled, keywords, lo, self._settings.autoreset


def _pickled(functions: Sequence[Callable[..., Any]], first: int) -> bytes:
    try:
        return dumps_for_worker(functions)
    except Exception as error:
        for i, function in enumerate(functions):
            try:
                dumps_for_worker(function)
            except Exception as own_error:
                raise TypeError(
                    f"env_fns[{first + i}] cannot be sent to a worker process, because it cannot "
                    f"be pickled: {own_error}. context='fork' does without pickling"
                ) from own_error
        raise TypeError(f"env_fns cannot be pickled: {error}") from error
