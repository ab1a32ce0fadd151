"""Who drives a group of environments: this process, or another one.

A vector environment is a row of drivers. Each is asked for one thing at a time, and then for
the result; between the two, the others work.
"""

from __future__ import annotations

import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from xuance_envs._override import override
from xuance_envs.engine.group.outcome import STATE_COMMANDS
from xuance_envs.engine.group.restorable_group import RestorableGroup
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.serialization import copy_of

__all__ = [
    "Driver",
    "GroupDriver",
    "LocalDriver",
    "Seeding",
    "StateTransfer",
    "derived_seed",
    "is_interrupt",
]


Seeding = tuple[int | None, int]
"""What an environment was seeded with last, and how often it has been restarted."""


def derived_seed(seed: int, restarts: int) -> int:
    """A new seed: with the old one, a crash that follows from it would come for ever."""
    return int(np.random.SeedSequence((seed % 2**64, restarts)).generate_state(1)[0])


class Driver(ABC):
    """One group of environments, wherever it is.

    Args:
        lo: index of its first environment.
        hi: index after its last environment.
    """

    is_local = False
    """Whether it works in this process, and only when its result is asked for."""

    seeds: list[Seeding] | None = None
    """What seeds of restarts follow from, of each environment; None where there are none."""

    def __init__(self, lo: int, hi: int) -> None:
        self.lo = lo
        self.hi = hi

    @property
    @abstractmethod
    def tag(self) -> int:
        """The number of the request it was last asked, as the vector environment counts them."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors one of which turns readable when there may be a result to take, if any."""
        return ()

    @property
    def reply_deadline(self) -> float | None:
        """When what it was asked for must be there, as :func:`time.monotonic` counts."""
        return None

    def pack_actions(self, actions: list[list[Any]]) -> Any:
        """Packs the actions' leaves that are held as objects for :meth:`submit_step`."""
        return actions

    @abstractmethod
    def submit_step(self, tag: int, actions: Any) -> None:
        """Starts a step; its actions are in the arrays, but for those that were packed."""

    @abstractmethod
    def pack(self, command: str, *arguments: Any) -> Any:
        """Packs a command of the group for :meth:`submit`.

        Raises:
            TypeError: the arguments cannot be brought to the group.
        """

    def with_buffers(self, packed: Any, buffers: Sequence[Any]) -> Any:
        """A packed command that is lent bytes, for a group in another process.

        Args:
            packed: the command.
            buffers: what the groups' state_transfer gave for them.
        """
        raise NotImplementedError(f"{type(self).__name__} is given all it needs as it is")

    @abstractmethod
    def submit(self, tag: int, packed: Any) -> None:
        """Starts a command of the group."""

    @abstractmethod
    def result(self, deadline: float | None = None) -> Any:
        """Waits for what was last asked for, and gives it as often as it is called.

        Raises:
            EnvError: an environment failed.
            WorkerDiedError: the process around the group ended.
            TimeoutError: the deadline passed.
        """

    def discard(self) -> Any:
        """Lets go of what was asked for before an interrupt.

        Returns:
            The result, if there is one, for what is in it besides.
        """
        with suppress(Exception):
            return self.result()
        return None

    def thaw(self, frozen: Any) -> Any:
        """An object that the group froze, for the caller to keep."""
        return frozen

    @abstractmethod
    def times(self) -> StepTimes:
        """How long its steps take; may be asked for at any time."""


class LocalDriver(Driver):
    """A group in this process."""

    is_local = True
    tag = 0

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__(lo, hi)
        self._stepping = self._method("step")
        # A method, and its arguments in a tuple each.
        self._call: tuple[Any, ...] = ()
        self._result: list[Any] = [None]

    @override
    def submit_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        self._call, self._result, self.tag = (self._stepping, (actions,), (tag,)), [], tag

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        if command in STATE_COMMANDS:  # whose arguments are made for it, and nobody's to change
            return command, arguments
        return command, copy_of(arguments)  # what the caller changes later changes nothing

    @override
    def submit(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        command, arguments = packed
        call = (self._method(command), *zip(arguments, strict=False))
        self._call, self._result, self.tag = call, [], tag

    @override
    def result(self, deadline: float | None = None) -> Any:
        result = self._result
        if not result:
            # All in C: no interrupt can come between the work's end and taking note of it.
            result.extend(map(*self._call))
        return result[0]

    @abstractmethod
    def _method(self, command: str) -> Callable[..., Any]:
        """What does a command.

        A step has the number of its request, by which one that an interrupt hit is told from a
        new one.
        """

    @override
    def discard(self) -> Any:
        self._result = self._result or [None]
        return self._result[0]


class GroupDriver(LocalDriver):
    """A :class:`~xuance_envs.engine.group.restorable_group.RestorableGroup` in this process."""

    def __init__(self, group: RestorableGroup, lo: int) -> None:
        self._group = group
        super().__init__(lo, lo + len(group.envs))

    @override
    def pack_actions(self, actions: list[list[Any]]) -> list[list[Any]]:
        return [list(map(copy_of, values)) for values in actions]  # for environments to write to

    def _method(self, command: str) -> Callable[..., Any]:
        return self._group.command(command)

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self._group.clock.memory)


class StateTransfer:
    """Lends groups the states that are too large for their commands; this one lends none."""

    max_inline_bytes: int | None = None

    def should_transfer(self, states: Sequence[Any]) -> bool:
        """Whether the states for one group are to be lent, and not a part of the command."""
        return False

    def export(self, states: Sequence[Any]) -> Sequence[Any]:
        """What stands for states, until :meth:`release` is called."""
        return states

    def allocate(self, sizes: Sequence[int]) -> Sequence[Any]:
        """What stands for states of some sizes that groups are to write."""
        return sizes

    def read(self, state: Any) -> bytes:
        """A state, whether it is lent or not."""
        return bytes(state)

    def release(self) -> None:
        """Ends what has been lent; again, it does nothing."""


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception that came out of an environment was raised for this process.

    Ctrl-C was, and so was what is no :class:`Exception` and comes from a signal handler: one that
    ends the program at SIGTERM, for example. ``sys.exit`` in an environment is its own failure.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
