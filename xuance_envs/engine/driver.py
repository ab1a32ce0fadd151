"""Who drives a group of environments: this process, or another one.

A vector environment is a row of drivers. Each is asked for one thing at a time, and then for
the result; between the two, the others work.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from typing import Any, Protocol

from xuance_envs.engine.env_group import EnvGroup
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.step_clock import StepTimes

__all__ = ["Driver", "LocalDriver", "is_interrupt"]


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


class Driver(Protocol):
    """One group of environments, wherever it is.

    Attributes:
        lo: index of its first environment.
        hi: index after its last environment.
    """

    lo: int
    hi: int

    @property
    def tag(self) -> int:
        """The number of the request it was last asked, as the vector environment counts them."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors one of which turns readable when there may be a result to take.

        There are none where the work is only done when the result is asked for.
        """

    @property
    def due(self) -> float | None:
        """When what it was asked for must be there, as :func:`time.monotonic` counts."""

    def pack_actions(self, actions: list[list[Any]]) -> Any:
        """Packs the actions' leaves that are held as objects for :meth:`ask_step`."""

    def ask_step(self, tag: int, actions: Any) -> None:
        """Starts a step; its actions are in the arrays, but for those that were packed."""

    def pack(self, command: str, *arguments: Any) -> Any:
        """Packs a command of the group for :meth:`ask`.

        Raises:
            TypeError: the arguments cannot be brought to the group.
        """

    def ask(self, tag: int, packed: Any) -> None:
        """Starts a command of the group."""

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

    def thaw(self, frozen: Any) -> Any:
        """An object that the group froze, for the caller to keep."""

    def times(self) -> StepTimes:
        """How long its steps take; may be asked for at any time."""


class LocalDriver:
    """A group in this process, which works when its result is asked for.

    Args:
        group: the group.
        lo: index of its first environment.
    """

    def __init__(self, group: EnvGroup, lo: int) -> None:
        self.group = group
        self.lo = lo
        self.hi = lo + len(group.envs)
        self.tag = 0
        self.fds: tuple[int, ...] = ()
        self.due: float | None = None
        self._request: tuple[str, Sequence[Any]] = "describe", ()
        self._result: list[Any] = [None]

    def pack_actions(self, actions: list[list[Any]]) -> list[list[Any]]:
        """See :class:`Driver`."""
        return [list(map(copy_of, values)) for values in actions]  # for environments to write to

    def ask_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        """See :class:`Driver`."""
        self._request, self._result, self.tag = ("step", (actions, tag)), [], tag

    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        """See :class:`Driver`."""
        return command, copy_of(arguments)  # what the caller changes later changes nothing

    def ask(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        """See :class:`Driver`."""
        self._request, self._result, self.tag = packed, [], tag

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`Driver`."""
        result = self._result
        if not result:
            # All in C: no interrupt can come between the work's end and taking note of it.
            result.extend(map(self._work, (self._request,)))
        return result[0]

    def _work(self, request: tuple[str, Sequence[Any]]) -> Any:
        command, arguments = request
        return getattr(self.group, command)(*arguments)

    def discard(self) -> Any:
        """See :class:`Driver`."""
        self._result = self._result or [None]
        return self._result[0]

    def thaw(self, frozen: Any) -> Any:
        """See :class:`Driver`."""
        return frozen

    def times(self) -> StepTimes:
        """See :class:`Driver`."""
        return StepTimes.read(self.group.clock.memory)
