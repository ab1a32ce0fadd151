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
from xuance_envs.engine.group.outcome import STARTUP_COMMANDS, STATE_COMMANDS, Outcome
from xuance_envs.engine.group.recipe import Seeding
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.serialization import copy_of


class Driver(ABC):
    """Handle on one local or remote group, which has the environments ``lo`` to ``hi - 1``."""

    runs_in_result = False  # True if the group runs only inside :meth:`result`
    shares_objects = False  # True if commands and results are objects, not pickles or buffers
    survives_fork = False  # True if the group works in a forked child, too
    seeds: list[Seeding] | None = None  # of the environments, for restarts; None without restarts

    def __init__(self, lo: int, hi: int) -> None:
        self.lo = lo
        self.hi = hi

    def places_of(self, envs: Sequence[int]) -> list[int]:
        return [env - self.lo for env in envs]

    @property
    @abstractmethod
    def tag(self) -> int:
        """Number of the last submitted request, as counted by the vectorized environment."""

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors that become readable when a result may be available; may be empty."""
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
        """Start a step; ``actions`` are the packed leaves that the step arrays cannot hold."""

    @abstractmethod
    def pack(self, command: str, *arguments: Any) -> Any:
        """Serialize a group command for ``submit``; raise TypeError if that is impossible."""

    def with_buffers(self, packed: Any, buffers: Sequence[Any]) -> Any:
        """Add buffers of the backend's ``state_transfer`` to a command for another process."""
        raise NotImplementedError(f"{type(self).__name__} does not use transfer buffers")

    @abstractmethod
    def submit(self, tag: int, packed: Any) -> None:
        """Start a packed group command."""

    @abstractmethod
    def result(self, deadline: float | None = None) -> Any:
        """Return the last request's result; raise its error, or TimeoutError after ``deadline``."""

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
        """Return the group's step times, even while a request is pending."""


class SavingDriver(Driver):
    """Driver of a group that can return its states with a command's result."""

    limits_steps = False  # True if steps have a time limit
    can_save = True  # False while the previous environments' episodes must still be truncated

    @abstractmethod
    def submit_and_save(self, tag: int, packed: Any, *how: Any) -> None:
        """Start a command, or a step if ``packed`` is None; pass ``how`` to ``run_and_save``."""


class CommonDriver(ABC):
    """Handle on all groups, which starts a step in all of them at once."""

    tag = -1  # number of the last step that it started

    @abstractmethod
    def start(self, tag: int, actions: Mapping[int, Any]) -> bool:
        """Start a step of all groups; return False if each driver must start its own."""

    @abstractmethod
    def outcomes(self) -> list[tuple[int, Outcome]]:
        """Wait for the step; return the groups whose outcome is not OK, with their outcomes."""

    @abstractmethod
    def started_by_drivers(self, tag: int) -> None:
        """Prepare the next common step, after a step for which :meth:`start` returned False."""

    @abstractmethod
    def hand_over(self) -> None:
        """Allow the groups' drivers to wait for the current step's results with ``result``."""


class ObjectDriver(Driver):
    """Driver that passes arguments and results as objects, to a group in this process."""

    shares_objects = True

    @override
    def thaw(self, frozen: Any) -> Any:
        return copy_of(frozen)  # the group may save it, and users may modify it

    @override
    def pack_actions(self, actions: list[list[Any]]) -> list[list[Any]]:
        return [list(map(copy_of, values)) for values in actions]  # environments may modify them

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        if command in STATE_COMMANDS or command in STARTUP_COMMANDS:  # arguments never shared
            return command, arguments
        return command, copy_of(arguments)


class LocalDriver(ObjectDriver):
    runs_in_result = survives_fork = True
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
        """Return a command's function; ``step`` also gets the tag, to detect repetitions."""

    @override
    def discard(self) -> Any:
        self._result = self._result or [None]
        return self._result[0]


class GroupDriver(LocalDriver, SavingDriver):
    def __init__(self, group: ResumableGroup) -> None:
        self._group = group
        self._loads = False  # True if the current command loads states
        self.survives_fork = group.survives_fork
        first = group.recipe.first
        super().__init__(first, first + len(group.envs))

    @override
    def submit_and_save(self, tag: int, packed: Any, *how: Any) -> None:
        command, arguments = packed or ("step", (None, tag))
        self.submit(tag, ("run_and_save", (command, arguments, *how)))
        self._loads = command == "load_states"

    @override
    def submit(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        super().submit(tag, packed)
        self._loads = packed[0] == "load_states"

    @override
    def discard(self) -> Any:
        # An interrupted load is repeated, so that all environments have loaded their states.
        return Driver.discard(self) if self._loads else super().discard()

    def _method(self, command: str) -> Callable[..., Any]:
        return self._group.command(command)

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self._group.clock.memory)
