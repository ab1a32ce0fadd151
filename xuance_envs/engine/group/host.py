"""Execution of a driver's commands on a group of environments, in any process or thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recipe import Recipe, reset_arguments
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import EnvDescription, is_asynchronous
from xuance_envs.engine.group.step_clock import ProgressRecord
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.system.library_threads import limit_threads
from xuance_envs.errors import EnvError


class GroupHost:
    def __init__(
        self,
        arrays: Callable[..., StepArrays],
        threads: int | None,
        recorder: ProgressRecord | None = None,
        inherited: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self.group: ResumableGroup
        self._exit_stack = ExitStack()
        self._arrays = arrays
        self._threads = threads
        self._inherited = inherited  # environment functions of the process that forked this one
        self.progress = recorder or ProgressRecord()
        self._commands: dict[str, Callable[..., Any]] = {
            "build": self._build,
            "attach": self._attach,
            "rebuild": self._rebuild,
            "ready": self._ready,
        }

    def close(self) -> None:
        """Close the environments; print errors, since no reply follows."""
        try:
            self._exit_stack.close()
        except EnvError as error:
            print(error, file=sys.stderr)

    def execute(self, command: str, arguments: Sequence[Any]) -> Any:
        """Run a driver's command, which is a method of this host or of the group."""
        method = self._commands.get(command) or self.group.command(command)
        return method(*arguments)

    def _build(
        self, env_fns: Any, keywords: Sequence[Mapping[str, Any]], first: int, autoreset: Autoreset
    ) -> list[tuple[int, EnvDescription]]:
        functions = self._functions(env_fns)
        limit_threads(self._threads)
        self.group = self._make_group(Recipe(functions, keywords, first, autoreset))
        self._exit_stack.callback(self.group.close)
        limit_threads(self._threads)
        return self.group.describe()

    def _functions(self, env_fns: Any) -> Any:
        return env_fns

    def _make_group(self, recipe: Recipe) -> ResumableGroup:
        return make_group(recipe, copy_of, self.progress)

    def _attach(self, *arguments: Any) -> None:
        self.group.attach(self._arrays(*arguments))

    def _rebuild(
        self,
        build: Sequence[Any],
        attach: Sequence[Any],
        attributes: Mapping[tuple[int, str], tuple[Any, AttributeSetter | None]],
        watched: Sequence[int],
        next_command: tuple[str, Sequence[Any]],
    ) -> Any:
        """Repeat the setup of the failed worker that this one replaces, then run a command."""
        self._build(*build)
        self._attach(*attach)
        for (place, name), (value, setter) in attributes.items():
            if setter is None:
                self.group.set_attr([place], name, [value])
            else:
                self.group.apply([place], setter, [(name, value)])
        self.group.watch_masks(watched, False)
        return self.execute(*next_command)

    def _ready(self, seeds: Sequence[int | None]) -> None:
        """Reset new environments, so that commands before the next step can use them."""
        for place, seed in enumerate(seeds):
            self.group.call([place], "reset", (), reset_arguments(seed))


def make_group(recipe: Recipe, *args: Any, **kwargs: Any) -> ResumableGroup:
    """Create environments and a group of the kind that fits them."""
    group = ResumableGroup(recipe, *args, **kwargs)
    if not any(map(is_asynchronous, group.envs)):
        return group
    from xuance_envs.engine.group.async_group import AsyncGroup  # imports asyncio

    return AsyncGroup(recipe, *args, **kwargs, envs=group.envs)
