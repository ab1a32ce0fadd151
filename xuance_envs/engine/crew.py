"""The workers of one vector environment, wherever they are: made, readied, and replaced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from xuance_envs.engine.driver import Driver
from xuance_envs.engine.env_group import Autoreset
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.engine.single_env import EnvDescription
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.errors import WorkerDiedError

__all__ = ["Crew", "CrewWorker", "shown"]


class CrewWorker(Driver, Protocol):
    """A driver whose group is in a process of its own, which can be lost and replaced.

    Attributes:
        siblings: workers whose end is reported while the answer of this one is waited for.
    """

    siblings: Sequence[Any]

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as is known."""

    def death(self) -> WorkerDiedError:
        """The error that says how it ended; it has."""

    def attach(self, arrays: StepArrays) -> None:
        """Takes note of the caller's arrays that its group's results are to be in."""


_SHOWN = {"build": "construct", "rebuild": "restart", "revive": "restart"}


def shown(command: str) -> str:
    """A command by the name that errors have for it."""
    return _SHOWN.get(command, command)


_W = TypeVar("_W", bound=CrewWorker)


class Crew(ABC, Generic[_W]):
    """Has workers make their environments, and replaces those that are lost.

    Args:
        split: index of the first environment and index after the last, of each.
        env_fns: makes an environment each; those of all workers.
        keywords: keyword arguments for each function.
        autoreset: when an environment whose episode ended is reset.

    Attributes:
        processes (list): those that have been started.
    """

    def __init__(
        self,
        split: Sequence[tuple[int, int]],
        env_fns: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
        autoreset: Autoreset = Autoreset.SAME_STEP,
    ) -> None:
        self.processes: list[_W] = []
        self._autoreset = autoreset
        self._split = split
        self._env_fns = env_fns
        self._keywords = keywords
        self._spaces: tuple[Any, Any] = (None, None)
        self._arrays: StepArrays

    def start(self) -> None:
        """Starts all of them."""
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
            worker.ask(0, worker.pack("build", *self._recipe(lo, hi, self._keywords[lo:hi])))

    def descriptions(self) -> list[tuple[int, EnvDescription]]:
        """Waits until they have made their environments, and tells what these are like.

        Raises:
            EnvError: a function raised, or what it returned is no environment.
            WorkerDiedError: one ended.
            WorkerTimeoutError: one took too long.
        """
        return [described for worker in self.processes for described in worker.result()]

    def attach(self, spaces: tuple[Any, Any], arrays: StepArrays) -> None:
        """Gives each its slice of the arrays."""
        self._spaces, self._arrays = spaces, arrays
        for worker in self.processes:
            worker.attach(arrays.slice(worker.lo, worker.hi))
            worker.ask(0, worker.pack("attach", *self._place(worker.lo, worker.hi)))
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
        """Starts another worker in the place of one, and asks it to go on.

        Args:
            index: which one.
            tag: number of the request.
            keywords: keyword arguments for the functions of its environments.
            attributes: what had been set, by the environment's place and the attribute's name.
            then: a command and its arguments; its result is that of the request.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        self._end(self.processes[index])
        self._start(index, lambda worker: self.processes.__setitem__(index, worker))
        worker = self.processes[index]
        lo, hi = worker.lo, worker.hi
        worker.attach(self._arrays.slice(lo, hi))
        build, attach = self._recipe(lo, hi, keywords), self._place(lo, hi)
        worker.ask(tag, worker.pack("rebuild", build, attach, attributes, then))

    @abstractmethod
    def _start(self, index: int, started: Callable[[_W], None]) -> None:
        """Starts one, and hands it over."""

    @abstractmethod
    def _end(self, worker: _W) -> None:
        """Ends one that is to be replaced."""

    @abstractmethod
    def _place(self, lo: int, hi: int) -> tuple[Any, ...]:
        """What a worker's group makes its arrays from."""

    def _functions(self, lo: int, hi: int) -> bytes | None:
        """The functions of some environments, pickled; None where the worker has them."""
        functions = self._env_fns[lo:hi]
        try:
            return dumps_for_worker(functions)
        except Exception as error:
            for i, function in enumerate(functions):
                try:
                    dumps_for_worker(function)
                except Exception as own_error:
                    raise TypeError(
                        f"env_fns[{lo + i}] cannot be sent to a worker process, because it "
                        f"cannot be pickled: {own_error}{self.without_pickling}"
                    ) from own_error
            raise TypeError(f"env_fns cannot be pickled: {error}") from error

    without_pickling = ""
    """What an error about a function that cannot be pickled adds, if there is another way."""

    def _recipe(
        self, lo: int, hi: int, keywords: Sequence[Mapping[str, Any]]
    ) -> tuple[bytes | None, Sequence[Mapping[str, Any]], int, Autoreset]:
        """What a worker makes its environments from."""
        return self._functions(lo, hi), keywords, lo, self._autoreset
