"""One group of environments as its caller asks for it, in whatever process it is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.env_group import EnvGroup
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recorder import Recorder
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.library_threads import limit_threads
from xuance_envs.engine.serialization import dumps_for_caller, loads
from xuance_envs.errors import EnvError

__all__ = ["GroupHost", "pack_result"]


class GroupHost:
    """Makes a group of environments, and executes commands on it.

    Args:
        arrays: makes the group's slice of the step's arrays, of what ``attach`` was given.
        threads: how many threads numeric libraries may use; None leaves them be.
        recorder: where the group keeps its records.
        inherited: what makes the environments, where it is here already.

    Attributes:
        group (EnvGroup): the group, once there is one.
    """

    def __init__(
        self,
        arrays: Callable[..., StepArrays],
        threads: int | None,
        recorder: Recorder | None = None,
        inherited: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self.group: EnvGroup
        self._arrays = arrays
        self._threads = threads
        self._recorder = recorder
        self._inherited = inherited
        self._commands: dict[str, Callable[..., Any]] = {
            "build": self._build,
            "rebuild": self._rebuild,
        }

    def execute(self, command: str, arguments: Sequence[Any]) -> Any:
        """Executes a command.

        Raises:
            EnvError: an environment failed.
        """
        return self._commands[command](*arguments)

    def packed(self, command: str, arguments: Sequence[Any]) -> bytes:
        """Executes a command, and pickles its result for the caller.

        Raises:
            EnvError: an environment failed.
            TypeError: the result cannot be pickled.
        """
        return pack_result(command, self.execute(command, arguments))

    def close(self) -> None:
        """Closes the environments; an error can only go to standard error by now."""
        if "attach" in self._commands:
            try:
                self.group.close()
            except EnvError as error:
                print(error, file=sys.stderr)

    def _build(
        self,
        env_fns: bytes | None,
        keywords: Sequence[Mapping[str, Any]],
        first: int,
        autoreset: Autoreset,
    ) -> list[tuple[int, EnvDescription]]:
        """Makes the environments, from functions that come pickled, or are here already."""
        functions = self._inherited if env_fns is None else loads(env_fns)
        limit_threads(self._threads)
        group = EnvGroup(
            functions, keywords, first, _freeze, self._recorder, autoreset, thaw=loads
        )
        self.group = group
        limit_threads(self._threads)
        self._commands = {
            "attach": self._attach,
            "step": group.step,
            "reset": group.reset,
            "call": group.call,
            "get_attr": group.get_attr,
            "set_attr": group.set_attr,
            "apply": group.apply,
            "render": group.render,
            "revive": group.revive,
            "save_states": group.save_states,
            "prepare_states": group.prepare_states,
            "load_states": group.load_states,
            "ready": self._ready,
        }
        return group.describe()

    def _attach(self, *arguments: Any) -> None:
        self.group.attach(self._arrays(*arguments))

    def _rebuild(
        self,
        build: Sequence[Any],
        attach: Sequence[Any],
        attributes: Mapping[tuple[int, str], Any],
        then: tuple[str, Sequence[Any]],
    ) -> Any:
        """Does all that a host did whose place this one takes, and then a command."""
        self._build(*build)
        self._attach(*attach)
        for (place, name), value in attributes.items():
            self.group.set_attr([place], name, [value])
        return self.execute(*then)

    def _ready(self, seeds: Sequence[int | None]) -> None:
        """Resets new environments for what is asked of them before a step resets them again."""
        for place, seed in enumerate(seeds):
            self.group.call([place], "reset", (), {} if seed is None else {"seed": seed})


def pack_result(command: str, result: Any) -> bytes:
    """Pickles what came of a command.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return dumps_for_caller(result)
    except Exception as error:
        raise TypeError(
            f"the result of {command!r} cannot be sent to the calling process, because it "
            f"cannot be pickled: {error}"
        ) from None


def _freeze(value: Any) -> bytes:
    try:
        return dumps_for_caller(value)
    except Exception as error:
        raise BadValueError(
            f"{value!r} cannot be sent to the calling process, because it cannot be pickled: "
            f"{error}"
        ) from None
