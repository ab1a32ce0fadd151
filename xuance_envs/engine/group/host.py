"""Execution of a driver's commands on a group of environments, in any process or thread."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.outcome import STARTUP_COMMANDS, Autoreset, Outcome
from xuance_envs.engine.group.protocol import ReplyType, RequestType, StateBuffer
from xuance_envs.engine.group.recipe import Recipe, reset_arguments
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import EnvDescription, is_asynchronous
from xuance_envs.engine.group.step_clock import ProgressRecord
from xuance_envs.engine.serialization import copy_of, dumps_for_main, loads, pack_error
from xuance_envs.engine.system.library_threads import limit_threads
from xuance_envs.errors import EnvError

logger = logging.getLogger("xuance_envs")


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

    def close(self) -> None:
        """Close the environments; print errors, since no reply follows."""
        try:
            self._exit_stack.close()
        except EnvError as error:
            print(error, file=sys.stderr)

    def execute(self, command: str, arguments: Sequence[Any]) -> Any:
        """Run a driver's command, which is a method of this host or of the group."""
        own = command in STARTUP_COMMANDS
        return (getattr(self, command) if own else self.group.command(command))(*arguments)

    def build(
        self, env_fns: Any, keywords: Sequence[Mapping[str, Any]], first: int, autoreset: Autoreset
    ) -> list[tuple[int, EnvDescription]]:
        functions = loads(env_fns) if isinstance(env_fns, bytes) else env_fns or self._inherited
        limit_threads(self._threads)
        self.group = self._make_group(Recipe(functions, keywords, first, autoreset))
        self._exit_stack.callback(self.group.close)
        limit_threads(self._threads)
        return self.group.describe()

    def _make_group(self, recipe: Recipe) -> ResumableGroup:
        return make_group(recipe, copy_of, self.progress)

    def attach(self, *arguments: Any) -> None:
        self.group.attach(self._arrays(*arguments))

    def rebuild(
        self,
        build: Sequence[Any],
        attach: Sequence[Any],
        attributes: Mapping[tuple[int, str], tuple[Any, AttributeSetter | None]],
        watched: Sequence[int],
        next_command: tuple[str, Sequence[Any]],
    ) -> Any:
        """Repeat the setup of the failed worker that this one replaces, then run a command."""
        self.build(*build)
        self.attach(*attach)
        for (place, name), (value, setter) in attributes.items():
            if setter is None:
                self.group.set_attr([place], name, [value])
            else:
                self.group.apply([place], setter, [(name, value)])
        self.group.watch_masks(watched, False)
        return self.execute(*next_command)

    def ready(self, seeds: Sequence[int | None]) -> None:
        """Reset new environments, so that commands before the next step can use them."""
        for place, seed in enumerate(seeds):
            self.group.call([place], "reset", (), reset_arguments(seed))


class DropUnpicklableInfos:
    """Base class of environment functions whose infos are sent without unpicklable values."""


class PicklingHost(GroupHost):
    """Host in a worker process, where commands arrive as bytes."""

    def answer(
        self, request: int, payload: bytes, buffers: Sequence[StateBuffer | bytes] = ()
    ) -> tuple[ReplyType, bytes]:
        try:
            if request == RequestType.STEP:
                result = self.group.step(None)
            else:
                command, arguments = loads(payload)
                result = self.execute(command, (*arguments, buffers) if buffers else arguments)
                if not isinstance(result, Outcome):
                    return ReplyType.VALUE, _freeze(result, f"the result of {command!r}")
            if result.rest is None:
                return ReplyType.EPISODE_ENDED if result.ended else ReplyType.OK, b""
            return ReplyType.OUTCOME, dumps_for_main(result)
        except BaseException as error:  # including asyncio's CancelledError and SystemExit
            return ReplyType.FAILED, pack_error(error)

    @override
    def _make_group(self, recipe: Recipe) -> ResumableGroup:
        drop = all(isinstance(function, DropUnpicklableInfos) for function in recipe.env_fns)
        freeze_info = _freeze_picklable if drop else _freeze
        return make_group(recipe, _freeze, self.progress, thaw=loads, freeze_info=freeze_info)


def make_group(recipe: Recipe, *args: Any, **kwargs: Any) -> ResumableGroup:
    """Create environments and a group of the kind that fits them."""
    group = ResumableGroup(recipe, *args, **kwargs)
    if not any(map(is_asynchronous, group.envs)):
        return group
    from xuance_envs.engine.group.async_group import AsyncGroup  # imports asyncio

    return AsyncGroup(recipe, *args, **kwargs, envs=group.envs)


def _freeze(value: Any, result: str = "") -> bytes:
    """Pickle a value that an environment returned, or a command's result, with its description."""
    try:
        return dumps_for_main(value)
    except Exception as error:
        what = f"{result or repr(value)} cannot be sent to the main process"
        text = f"{what} because it cannot be pickled: {error}"
        raise (TypeError(text) if result else BadValueError(text)) from None


def _freeze_picklable(info: dict[Any, Any]) -> bytes:
    try:
        return _freeze(info)
    except BadValueError:
        picklable = {}
        for key, value in info.items():
            try:
                dumps_for_main((key, value))
                picklable[key] = value
            except Exception as error:
                _warn_dropped_key(f"{key!r}", f"{error}")
        return _freeze(picklable)


@lru_cache(256)
def _warn_dropped_key(key: str, why: str) -> None:
    logger.warning("dropped %s from infos because it cannot be pickled: %s", key, why)
