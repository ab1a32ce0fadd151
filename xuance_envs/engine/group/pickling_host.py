"""Execution of commands that arrive as bytes, in a worker process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.group.host import GroupHost, make_group
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.group.protocol import ReplyType, RequestType, StateBuffer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.serialization import dumps_for_main, loads, pack_error

logger = logging.getLogger("xuance_envs")


class DropUnpicklableInfos:
    """Base class of environment functions whose infos are sent without unpicklable values."""


class PicklingHost(GroupHost):
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
    def _functions(self, env_fns: bytes | None) -> Any:
        return loads(env_fns) if env_fns else self._inherited

    @override
    def _make_group(self, recipe: Recipe) -> ResumableGroup:
        drop = all(isinstance(function, DropUnpicklableInfos) for function in recipe.env_fns)
        freeze_info = _freeze_picklable if drop else _freeze
        return make_group(recipe, _freeze, self.progress, thaw=loads, freeze_info=freeze_info)


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
