"""Where the groups of a vector environment live when it is not this process.

A backend is one object: it starts workers, processes or actors, has them make their environments,
replaces those that are lost, is told before each step, and ends them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, Lender
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.requests import Reply
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.engine.waiting import Waiter
from xuance_envs.errors import WorkerDiedError

__all__ = ["HURRY", "STARTING", "Backend", "Packed", "WorkerDriver", "shown"]

HURRY = 1.0
"""Seconds workers have to close their environments when nobody asked them to: after Ctrl-C, at the
interpreter's exit, when they are forgotten, or when they are replaced."""


class Packed(NamedTuple):
    """A command for a worker.

    Attributes:
        command: its name.
        payload: the name and the arguments, pickled.
        lent: what stands for bytes that it is lent.
    """

    command: str
    payload: bytes
    lent: Sequence[Any] = ()


class WorkerDriver(Driver):
    """A group in a worker, which can be lost and replaced.

    Args:
        lo: index of its first environment.
        hi: index after its last environment.

    Attributes:
        siblings: workers whose end is reported while the answer of this one is waited for.
    """

    what = "a worker"
    """What it is, in words for errors."""

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__(lo, hi)
        self.siblings: Sequence[Any] = ()

    def pack(self, command: str, *arguments: Any) -> Packed:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        try:
            return Packed(command, dumps_for_worker((command, arguments)))
        except Exception as error:
            raise TypeError(
                f"what {command!r} was given cannot be sent to {self.what}, because it cannot be "
                f"pickled: {error}"
            ) from error

    def lending(self, packed: Packed, lent: Sequence[Any]) -> Packed:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return packed._replace(lent=lent)

    def unpack(self, reply: int, payload: bytes) -> Any:
        """The value, or the outcome, that a reply's payload is.

        Raises:
            EnvError: the reply is that an environment failed.
        """
        if reply == Reply.FAILED:
            raise self._failure(unpack_error(payload))
        return loads(payload)

    def _failure(self, error: BaseException) -> BaseException:
        """The error to raise for what the worker raised."""
        return error

    def thaw(self, frozen: bytes) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return loads(frozen)

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it has not ended, as far as is known."""

    @abstractmethod
    def death(self) -> WorkerDiedError:
        """The error that says how it ended; it has."""

    @abstractmethod
    def attach(self, arrays: StepArrays) -> None:
        """Takes note of the caller's arrays that its group's results are to be in."""


STARTING = frozenset({"build", "attach", "rebuild"})
"""The commands that workers have as long for as they have to start."""

_SHOWN = {"build": "construct", "rebuild": "restart", "revive": "restart"}


def shown(command: str) -> str:
    """A command by the name that errors have for it."""
    return _SHOWN.get(command, command)


_W = TypeVar("_W", bound=WorkerDriver)


class Backend(ABC, Generic[_W]):
    """The workers of one vector environment.

    Args:
        split: index of the first environment and index after the last, of each.
        recipe: what the environments of all are made from.
        info_bytes: room for the arrays in each environment's info.

    Attributes:
        workers (list): those that have been started.
        recipe: as given.
        info_bytes: as given.
    """

    def __init__(
        self,
        split: Sequence[tuple[int, int]],
        recipe: Recipe,
        info_bytes: int = INFO_BYTES,
    ) -> None:
        self.workers: list[_W] = []
        self.recipe = recipe
        self.info_bytes = info_bytes
        self._split = split
        self._spaces: tuple[Any, Any] = (None, None)
        self._arrays: StepArrays

    def start(self) -> None:
        """Starts all of them."""
        for index in range(len(self._split)):
            self._start(index, self.workers.append)
        for worker in self.workers:
            worker.siblings = self.workers

    def build(self) -> None:
        """Asks each to make its environments.

        Raises:
            TypeError: a function cannot be pickled.
        """
        for worker in self.workers:
            lo, hi = worker.lo, worker.hi
            keywords = self.recipe.keywords[lo:hi]
            worker.ask(0, worker.pack("build", *self._made_from(lo, hi, keywords)))
        if self.asked is not None:
            self.asked()

    def descriptions(self) -> list[tuple[int, EnvDescription]]:
        """Waits until they have made their environments, and tells what these are like.

        Raises:
            EnvError: a function raised, or what it returned is no environment.
            WorkerDiedError: one ended.
            WorkerTimeoutError: one took too long.
        """
        return [described for worker in self.workers for described in worker.result()]

    def attach(self, spaces: tuple[Any, Any], arrays: StepArrays) -> None:
        """Gives each its slice of the arrays."""
        self._spaces, self._arrays = spaces, arrays
        for worker in self.workers:
            worker.attach(arrays.slice(worker.lo, worker.hi))
            worker.ask(0, worker.pack("attach", *self._place(worker.lo, worker.hi)))
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
        """Starts another worker in the place of one, and asks it to go on.

        Args:
            index: which one.
            tag: number of the request.
            keywords: keyword arguments for the functions of its environments.
            attributes: what had been set, by the environment's place and the attribute's name.
            watched: the places of environments whose masks are asked for.
            then: a command and its arguments; its result is that of the request.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        worker = self.restart(index)
        lo, hi = worker.lo, worker.hi
        worker.attach(self._arrays.slice(lo, hi))
        build, attach = self._made_from(lo, hi, keywords), self._place(lo, hi)
        worker.ask(tag, worker.pack("rebuild", build, attach, attributes, watched, then))

    def restart(self, index: int) -> _W:
        """Starts another worker in the place of one, which nobody has asked for anything yet.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        self._end(index)
        self._start(index, lambda worker: self.workers.__setitem__(index, worker))
        return self.workers[index]

    def before_step(self) -> None:
        """Is called before each step."""

    lender: Lender | None = None
    """Brings the groups what is too large for their commands; None where nothing is."""

    asked: Callable[[], None] | None = None
    """Is called when some workers have been asked; None where each begins by itself."""

    @abstractmethod
    def allocate(self, spaces: tuple[Any, Any], num_envs: int) -> StepArrays:
        """Lays out the arrays of all environments, for an observation and an action space.

        Raises:
            MemoryError: there is too little memory for them.
        """

    @abstractmethod
    def waiter(self, drivers: Sequence[Driver]) -> Waiter:
        """What waits for the first of some groups, these workers' and others, that answers."""

    @abstractmethod
    def end(self, patience: float | None = None) -> None:
        """Ends all workers.

        Args:
            patience: seconds they have to close their environments; None for what is usual.
        """

    @abstractmethod
    def ends_with(self, owner: Any) -> Callable[[], Any]:
        """Ends everything in a hurry when an object is forgotten, or at the interpreter's exit.

        Returns:
            What does that now, instead.
        """

    @abstractmethod
    def _start(self, index: int, started: Callable[[_W], None]) -> None:
        """Starts one, and hands it over."""

    @abstractmethod
    def _end(self, index: int) -> None:
        """Ends one that is to be replaced."""

    @abstractmethod
    def _place(self, lo: int, hi: int) -> tuple[Any, ...]:
        """What a worker's group makes its arrays from."""

    def _functions(self, lo: int, hi: int) -> bytes | None:
        """The functions of some environments, pickled; None where the worker has them."""
        functions = self.recipe.env_fns[lo:hi]
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

    def _made_from(
        self, lo: int, hi: int, keywords: Sequence[Mapping[str, Any]]
    ) -> tuple[bytes | None, Sequence[Mapping[str, Any]], int, Autoreset]:
        """What a worker makes its environments from."""
        return self._functions(lo, hi), keywords, lo, self.recipe.autoreset
