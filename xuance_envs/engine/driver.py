"""Who drives a group of environments: this process, or another one.

A vector environment is a row of drivers. Each is asked for one thing at a time, and then for
the result; between the two, the others work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from xuance_envs.engine.env_group import EnvGroup
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.step_clock import StepTimes

__all__ = ["Driver", "LocalDriver"]


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
        self._request: tuple[str, Sequence[Any]] | None = None
        self._result: Any = None

    def pack_actions(self, actions: list[list[Any]]) -> list[list[Any]]:
        """See :class:`Driver`."""
        return [list(map(copy_of, values)) for values in actions]  # for environments to write to

    def ask_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        """See :class:`Driver`."""
        self._request, self.tag = ("step", (actions,)), tag

    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        """See :class:`Driver`."""
        return command, arguments

    def ask(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        """See :class:`Driver`."""
        self._request, self.tag = packed, tag

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`Driver`."""
        if self._request is not None:
            command, arguments = self._request
            self._result = getattr(self.group, command)(*arguments)
            self._request = None
        return self._result

    def discard(self) -> Any:
        """See :class:`Driver`."""
        if self._request is None:
            return self._result
        self._request = None
        return None

    def thaw(self, frozen: Any) -> Any:
        """See :class:`Driver`."""
        return frozen

    def times(self) -> StepTimes:
        """See :class:`Driver`."""
        return StepTimes.read(self.group.clock.memory)
