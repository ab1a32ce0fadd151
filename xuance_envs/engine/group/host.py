"""Execution of a driver's commands on a group of environments, in any process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import Autoreset, Outcome
from xuance_envs.engine.group.progress_record import ProgressRecord
from xuance_envs.engine.group.protocol import ReplyType, RequestType, StateBuffer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.restorable_group import RestorableGroup
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.serialization import dumps_for_main, loads, pack_error
from xuance_envs.engine.system.library_threads import limit_threads
from xuance_envs.errors import EnvError

logger = logging.getLogger("xuance_envs")


class DropUnpicklableInfos:
    """Marker base class for environment functions whose infos may contain unpicklable values.

    The host drops such values and logs a warning once per key.
    """


class GroupHost:
    """Host that builds a group and executes commands on it."""

    def __init__(
        self,
        arrays: Callable[..., StepArrays],
        threads: int | None,
        recorder: ProgressRecord | None = None,
        inherited: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self.group: RestorableGroup
        self._exit_stack = ExitStack()
        self._arrays = arrays
        self._threads = threads
        self._progress = recorder
        self._inherited = inherited
        self._commands: dict[str, Callable[..., Any]] = {
            "build": self._build,
            "attach": self._attach,
            "rebuild": self._rebuild,
            "ready": self._ready,
        }

    def answer(
        self, request: int, payload: bytes, buffers: Sequence[StateBuffer | bytes] = ()
    ) -> tuple[ReplyType, bytes]:
        try:
            if request == RequestType.STEP:
                result = self.group.step(None)
            else:
                command, arguments = loads(payload)
                result = self._execute(command, (*arguments, buffers) if buffers else arguments)
                if not isinstance(result, Outcome):
                    return ReplyType.VALUE, _pack_result(command, result)
            if result.rest is None:
                return ReplyType.EPISODE_ENDED if result.ended else ReplyType.OK, b""
            return ReplyType.OUTCOME, dumps_for_main(result)
        except BaseException as error:  # including asyncio's CancelledError and SystemExit
            return ReplyType.FAILED, pack_error(error)

    def close(self) -> None:
        """Close the environments; print errors, since no reply follows."""
        try:
            self._exit_stack.close()
        except EnvError as error:
            print(error, file=sys.stderr)

    def _execute(self, command: str, arguments: Sequence[Any]) -> Any:
        method = self._commands.get(command) or self.group.command(command)
        return method(*arguments)

    def _build(
        self,
        env_fns: bytes | None,
        keywords: Sequence[Mapping[str, Any]],
        first: int,
        autoreset: Autoreset,
    ) -> list[tuple[int, EnvDescription]]:
        functions = self._inherited if env_fns is None else loads(env_fns)
        limit_threads(self._threads)
        drop_unpicklable = all(isinstance(function, DropUnpicklableInfos) for function in functions)
        self.group = RestorableGroup(
            Recipe(functions, keywords, first, autoreset),
            _freeze,
            self._progress,
            thaw=loads,
            freeze_info=_freeze_picklable if drop_unpicklable else _freeze,
        )
        self._exit_stack.callback(self.group.close)
        limit_threads(self._threads)
        return self.group.describe()

    def _attach(self, *arguments: Any) -> None:
        self.group.attach(self._arrays(*arguments))

    def _rebuild(
        self,
        build: Sequence[Any],
        attach: Sequence[Any],
        attributes: Mapping[tuple[int, str], Any],
        watched: Sequence[int],
        next_command: tuple[str, Sequence[Any]],
    ) -> Any:
        """Repeat the setup of the failed worker that this one replaces, then run a command."""
        self._build(*build)
        self._attach(*attach)
        for (place, name), value in attributes.items():
            self.group.set_attr([place], name, [value])
        self.group.watch_masks(watched, False)
        return self._execute(*next_command)

    def _ready(self, seeds: Sequence[int | None]) -> None:
        """Reset new environments, so that commands can use them before a step resets them again."""
        for place, seed in enumerate(seeds):
            self.group.call([place], "reset", (), {} if seed is None else {"seed": seed})


def _pack_result(command: str, result: Any) -> bytes:
    try:
        return dumps_for_main(result)
    except Exception as error:
        raise TypeError(
            f"the result of {command!r} cannot be sent to the main process because it "
            f"cannot be pickled: {error}"
        ) from None


def _freeze(value: Any) -> bytes:
    try:
        return dumps_for_main(value)
    except Exception as error:
        raise BadValueError(
            f"{value!r} cannot be sent to the main process because it cannot be pickled: {error}"
        ) from None


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
