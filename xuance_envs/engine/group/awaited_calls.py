"""Calls of asynchronous environments, which are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from types import CoroutineType, FrameType
from typing import Any, NamedTuple

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.group.single_env import asynchronous_layer
from xuance_envs.engine.serialization import copy_of
from xuance_envs.env_layers import env_layers
from xuance_envs.event_loops import Outcome, outcome_of


class Call(NamedTuple):
    """Call of an environment's ``reset`` or ``step``."""

    env: Any
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class AwaitedCalls:
    """Calls of one command, by place in the group, and their outcomes.

    With ``then_reset``, a step that ended an episode is followed by a reset. ``on_outcome`` is
    called in the loop's thread after each outcome.
    """

    def __init__(
        self, calls: Mapping[int, Call], then_reset: bool, on_outcome: Callable[[], Any]
    ) -> None:
        self.calls = calls
        self.outcomes: dict[tuple[int, str], Outcome] = {}
        self.running: dict[int, asyncio.Task[Any] | None] = {}
        self.are_finished = False
        self._unfinished = len(calls)
        self._began = False
        self._then_reset = then_reset
        self._on_outcome = on_outcome

    def begin(self) -> None:
        """Start all calls, in the loop's thread; repeated calls do nothing."""
        if not self._began:
            self._began = True
            for place in self.calls:
                self.running[place] = asyncio.ensure_future(self._run(place))

    async def wait(self) -> None:
        """Start all calls and wait for them."""
        if len(self.calls) == 1:
            for place in self.calls:
                self._began, self.running[place] = True, asyncio.current_task()
                await self._run(place)
        else:
            self.begin()
            await asyncio.wait([task for task in self.running.values() if task is not None])

    def cancel(self) -> None:
        """Cancel the calls that are still running, in the loop's thread."""
        for task in list(self.running.values()):
            if task is not None:
                task.cancel()

    async def _run(self, place: int) -> None:
        call = self.calls[place]
        value, error, ends = None, None, False
        try:
            value = await start(call)
            if self._then_reset and call.name == "step" and _has_ended(value):
                value, ends = copy_of(value), True  # the reset may change the objects
        except BaseException as raised:  # a SystemExit would end the loop
            error = raised
        self.outcomes[place, call.name] = value, error
        if ends:
            self._on_outcome()
            self.outcomes[place, "reset"] = await outcome_of(start_reset(call.env))
        del self.running[place]
        self._unfinished -= 1
        self.are_finished = not self._unfinished
        self._on_outcome()


async def start_reset(env: Any) -> Any:
    return await start(Call(env, "reset"))


def start(call: Call) -> Awaitable[Any]:
    """Make a call; raise if a wrapper reads the result instead of returning the awaitable."""
    env, name, args, kwargs = call
    try:
        result = getattr(env, name)(*args, **kwargs)
    except Exception as error:
        if "coroutine" in str(error) and (layer := _raising_layer(env, error)) is not None:
            raise BadValueError(_reads(layer, name)) from error
        raise
    if type(result) is CoroutineType or isawaitable(result):
        return result
    inner = asynchronous_layer(env, name)
    own = next((x for x in env_layers(env) if x is not inner and name in vars(type(x))), env)
    raise BadValueError(f"{_reads(own, name)}, and returned {describe(result)}")


def _reads(layer: Any, name: str) -> str:
    return (
        f"{type(layer).__name__} uses the result of {name} without awaiting it, but {name} is "
        "'async def': wrap the environment only in wrappers that return the result unchanged or "
        "whose reset and step are 'async def', or wrap the vectorized environment. To get no "
        "such wrapper from gymnasium.make, pass disable_env_checker=True and register the id "
        "without max_episode_steps"
    )


def _raising_layer(env: Any, error: BaseException) -> Any:
    """Return the innermost layer in an exception's traceback."""
    layers = {id(layer): layer for layer in env_layers(env)}
    found, traceback = None, error.__traceback__
    while traceback is not None:
        found = layers.get(id(traceback.tb_frame.f_locals.get("self")), found)
        traceback = traceback.tb_next
    return found


def _has_ended(result: Any) -> bool:
    try:
        _, _, terminated, truncated, _ = result
        return bool(terminated or truncated)
    except Exception:
        return False  # the group raises an error with the reason


def frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames in which a task waits, the outermost first."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames
