"""Drivers: the main process's handles on groups of environments.

A vectorized environment has a list of drivers. Each driver accepts one request at a time and
returns the result later. While requests are pending, the groups work in parallel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.group.outcome import STATE_COMMANDS, Outcome
from xuance_envs.engine.group.recipe import Seeding
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.serialization import copy_of


class Driver(ABC):
    """Handle on one group of environments, local or remote.

    Args:
        lo: index of its first environment.
        hi: index after its last environment.
    """

    runs_in_result = False
    """True if the group runs inside :meth:`result`, so only when its result is requested."""

    shares_objects = False
    """True if commands and results are passed as objects, without pickling or transfer buffers."""

    survives_fork = False
    """True if the group works in a forked child, too."""

    seeds: list[Seeding] | None = None
    """Seed of each environment, from which restarts derive new ones; None if restarts are off."""

    def __init__(self, lo: int, hi: int) -> None:
        self.lo = lo
        self.hi = hi

    def places_of(self, envs: Sequence[int]) -> list[int]:
        """Return the positions of some of its environments in the group."""
        return [env - self.lo for env in envs]

    @property
    @abstractmethod
    def tag(self) -> int:
        """Number of the last submitted request, as counted by the vectorized environment."""

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors that become readable when a result may be available.

        If a driver has none, its backend needs its own :class:`Poller`.
        """
        return ()

    @property
    def reply_deadline(self) -> float | None:
        """Deadline of the current request, on the clock of :func:`time.monotonic`."""
        return None

    def pack_actions(self, actions: list[list[Any]]) -> Any:
        """Serialize the action leaves that are objects, for :meth:`submit_step`."""
        return actions

    @abstractmethod
    def submit_step(self, tag: int, actions: Any) -> None:
        """Start a step, whose actions are in the shared step arrays.

        ``actions`` has the packed leaves without an array form: see :meth:`pack_actions`.
        """

    @abstractmethod
    def pack(self, command: str, *arguments: Any) -> Any:
        """Serialize a group command for ``submit``.

        Raises:
            TypeError: the arguments cannot be sent to the group.
        """

    def with_buffers(self, packed: Any, buffers: Sequence[Any]) -> Any:
        """Add transfer buffers to a packed command for a group in another process.

        Args:
            packed: the command from :meth:`pack`.
            buffers: the buffers from the backend's ``state_transfer``.

        Raises:
            NotImplementedError: the group takes all arguments directly.
        """
        raise NotImplementedError(f"{type(self).__name__} does not use transfer buffers")

    @abstractmethod
    def submit(self, tag: int, packed: Any) -> None:
        """Start a packed group command."""

    @abstractmethod
    def result(self, deadline: float | None = None) -> Any:
        """Wait for the result of the last request; may be called repeatedly.

        Raises:
            EnvError: an environment failed.
            WorkerDiedError: the group's process ended.
            TimeoutError: ``deadline`` passed.
        """

    def discard(self) -> Any:
        """Finish an interrupted request and return its result, or None if it failed."""
        with suppress(Exception):
            return self.result()
        return None

    def thaw(self, frozen: Any) -> Any:
        """Restore an object from the form in which the group returned it."""
        return frozen

    @abstractmethod
    def times(self) -> StepTimes:
        """Return the group's step times; may be called at any time."""


class SavingDriver(Driver):
    """Driver of a group that can return its states with a command's result."""

    can_save = True
    """False while new environments still have to truncate the previous ones' episodes."""

    @abstractmethod
    def submit_and_save(self, tag: int, packed: Any, *how: Any) -> None:
        """Start a packed command, or a step if None, that also returns the states after it.

        ``how`` are further arguments of the group's ``run_and_save``.
        """


class CommonDriver(ABC):
    """Handle on all groups at once, for a step that one wake-up starts."""

    tag = -1
    """Number of the last step that it started."""

    @abstractmethod
    def start(self, tag: int, actions: Mapping[int, Any]) -> bool:
        """Start a step of all groups, or return False if each driver must start its own.

        Can be repeated after an interrupt.
        """

    @abstractmethod
    def outcomes(self) -> list[tuple[int, Outcome]]:
        """Wait for the step; return groups and their outcomes, except those that are OK."""

    @abstractmethod
    def started_by_drivers(self, tag: int) -> None:
        """Prepare for common steps; called when a step that the drivers started has ended."""

    @abstractmethod
    def hand_over(self) -> None:
        """Let each driver wait for its own group's result of the current step."""


class LocalDriver(Driver):
    runs_in_result = shares_objects = survives_fork = True
    tag = 0

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__(lo, hi)
        self._stepping = self._method("step")
        # Arguments for map(): a method, then a one-element tuple for each of its arguments.
        self._call: tuple[Any, ...] = ()
        self._result: list[Any] = [None]

    @override
    def submit_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        self._call, self._result, self.tag = (self._stepping, (actions,), (tag,)), [], tag

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        if command in STATE_COMMANDS:  # their arguments are never shared
            return command, arguments
        return command, copy_of(arguments)

    @override
    def submit(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        command, arguments = packed
        call = (self._method(command), *zip(arguments, strict=False))
        self._call, self._result, self.tag = call, [], tag

    @override
    def result(self, deadline: float | None = None) -> Any:
        result = self._result
        if not result:
            # All in C, so no interrupt can separate the call's end from storing its result.
            result.extend(map(*self._call))
        return result[0]

    @abstractmethod
    def _method(self, command: str) -> Callable[..., Any]:
        """Return the function that runs a command; a step's function also gets the tag.

        The tag distinguishes a step repeated after an interrupt from a new one.
        """

    @override
    def discard(self) -> Any:
        self._result = self._result or [None]
        return self._result[0]


class GroupDriver(LocalDriver, SavingDriver):
    """Driver of a restorable group in this process."""

    def __init__(self, group: ResumableGroup, lo: int) -> None:
        self._group = group
        self.survives_fork = group.survives_fork
        super().__init__(lo, lo + len(group.envs))

    @override
    def pack_actions(self, actions: list[list[Any]]) -> list[list[Any]]:
        return [list(map(copy_of, values)) for values in actions]  # environments may modify them

    @override
    def submit_and_save(
        self, tag: int, packed: tuple[str, Sequence[Any]] | None, *how: Any
    ) -> None:
        command, arguments = packed or ("step", (None, tag))
        self.submit(tag, ("run_and_save", (command, arguments, *how)))

    def _method(self, command: str) -> Callable[..., Any]:
        return self._group.command(command)

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self._group.clock.memory)
