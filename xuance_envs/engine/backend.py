"""Where the groups of a vector environment live when it is not this process.

A backend is one object: it starts workers, processes or actors, has them make their environments,
replaces those that are lost, is told before each step, and ends them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from xuance_envs._override import override
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, StateTransfer
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.protocol import ReplyType
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.errors import WorkerDiedError

__all__ = [
    "FORCED_CLOSE_TIMEOUT",
    "STARTUP_COMMANDS",
    "Backend",
    "PackedCommand",
    "WorkerDriver",
    "display_name",
]

FORCED_CLOSE_TIMEOUT = 1.0
"""Seconds workers have to close their environments when nobody asked them to: after Ctrl-C, at the
interpreter's exit, when they are forgotten, or when they are replaced."""


class PackedCommand(NamedTuple):
    """A command for a worker."""

    command: str
    payload: bytes
    buffers: Sequence[Any] = ()


class WorkerDriver(Driver):
    """A group in a worker, which can be lost and replaced."""

    kind_name = "a worker"
    """What it is, in words for errors."""

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__(lo, hi)
        self.siblings: Sequence[Any] = ()

    @override
    def pack(self, command: str, *arguments: Any) -> PackedCommand:
        try:
            return PackedCommand(command, dumps_for_worker((command, arguments)))
        except Exception as error:
            raise TypeError(
                f"what {command!r} was given cannot be sent to {self.kind_name}, because it cannot be "
                f"pickled: {error}"
            ) from error

    @override
    def with_buffers(self, packed: PackedCommand, buffers: Sequence[Any]) -> PackedCommand:
        return packed._replace(buffers=buffers)

    def unpack(self, reply: int, payload: bytes) -> Any:
        """The value, or the outcome, that a reply's payload is."""
        if reply == ReplyType.FAILED:
            raise self._failure(unpack_error(payload))
        return loads(payload)

    def _failure(self, error: BaseException) -> BaseException:
        """The error to raise for what the worker raised."""
        return error

    @override
    def thaw(self, frozen: bytes) -> Any:
        return loads(frozen)

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it has not ended, as far as is known."""

    @abstractmethod
    def death_error(self) -> WorkerDiedError:
        """The error that says how it ended; it has."""

    @abstractmethod
    def attach(self, arrays: StepArrays) -> None:
        """Takes note of the caller's arrays that its group's results are to be in."""


STARTUP_COMMANDS = frozenset({"build", "attach", "rebuild"})
"""The commands that workers have as long for as they have to start."""

_DISPLAY_NAMES = {"build": "construct", "rebuild": "restart", "reset_after_restart": "restart"}


def display_name(command: str) -> str:
    """A command by the name that errors have for it."""
    return _DISPLAY_NAMES.get(command, command)


_W = TypeVar("_W", bound=WorkerDriver)


class Backend(ABC, Generic[_W]):
    """The workers of one vector environment."""

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
        """Asks each to make its environments."""
        for worker in self.workers:
            lo, hi = worker.lo, worker.hi
            keywords = self.recipe.keywords[lo:hi]
            worker.submit(0, worker.pack("build", *self._build_arguments(lo, hi, keywords)))
        if self.after_submit is not None:
            self.after_submit()

    def descriptions(self) -> list[tuple[int, EnvDescription]]:
        """Waits until they have made their environments, and tells what these are like."""
        return [described for worker in self.workers for described in worker.result()]

    def attach(self, spaces: tuple[Any, Any], arrays: StepArrays) -> None:
        """Gives each its slice of the arrays."""
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
        """Starts another worker in the place of one, and asks it to go on."""
        worker = self.restart(index)
        lo, hi = worker.lo, worker.hi
        worker.attach(self._arrays.slice(lo, hi))
        build, attach = self._build_arguments(lo, hi, keywords), self._attach_arguments(lo, hi)
        worker.submit(tag, worker.pack("rebuild", build, attach, attributes, watched, then))

    def restart(self, index: int) -> _W:
        """Starts another worker in the place of one, which nobody has asked for anything yet."""
        self._end(index)
        self._start(index, lambda worker: self.workers.__setitem__(index, worker))
        return self.workers[index]

    def before_step(self) -> None:
        """Is called before each step."""

    state_transfer: StateTransfer | None = None
    """Brings the groups what is too large for their commands; None where nothing is."""

    after_submit: Callable[[], None] | None = None
    """Is called when some workers have been asked; None where each begins by itself."""

    @abstractmethod
    def allocate(self, spaces: tuple[Any, Any], num_envs: int) -> StepArrays:
        """Lays out the arrays of all environments, for an observation and an action space."""

    @abstractmethod
    def poller(self, drivers: Sequence[Driver]) -> Poller:
        """What waits for the first of some groups, these workers' and others, that answers."""

    @abstractmethod
    def end(self, close_timeout: float | None = None) -> None:
        """Ends all workers."""

    @abstractmethod
    def register_finalizer(self, owner: Any) -> Callable[[], Any]:
        """Ends everything in a hurry when an object is forgotten, or at the interpreter's exit."""

    @abstractmethod
    def _start(self, index: int, started: Callable[[_W], None]) -> None:
        """Starts one, and hands it over."""

    @abstractmethod
    def _end(self, index: int) -> None:
        """Ends one that is to be replaced."""

    @abstractmethod
    def _attach_arguments(self, lo: int, hi: int) -> tuple[Any, ...]:
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
                        f"cannot be pickled: {own_error}{self.pickling_hint}"
                    ) from own_error
            raise TypeError(f"env_fns cannot be pickled: {error}") from error

    pickling_hint = ""
    """What an error about a function that cannot be pickled adds, if there is another way."""

    def _build_arguments(
        self, lo: int, hi: int, keywords: Sequence[Mapping[str, Any]]
    ) -> tuple[bytes | None, Sequence[Mapping[str, Any]], int, Autoreset]:
        """What a worker makes its environments from."""
        return self._functions(lo, hi), keywords, lo, self.recipe.autoreset
