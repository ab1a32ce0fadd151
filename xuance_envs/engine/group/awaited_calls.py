"""Calls of asynchronous environments, which are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from time import perf_counter
from types import CoroutineType, FrameType
from typing import Any

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.group.single_env import asynchronous_layer, to_bool
from xuance_envs.engine.serialization import copy_of
from xuance_envs.env_layers import env_layers
from xuance_envs.event_loops import Outcome, outcome_of


@dataclass(slots=True, eq=False)
class AwaitedCall:
    """Call of an environment's ``reset`` or ``step`` on an event loop."""

    env: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    then_reset: bool  # True to reset after a step that ends an episode
    on_outcome: Callable[[], Any]  # called in the loop's thread after each outcome
    outcome: Outcome | None = None
    reset_outcome: Outcome | None = None
    seconds: float = 0.0  # duration, including the reset
    task: asyncio.Task[Any] | None = None
    is_finished: bool = False

    async def run(self) -> None:
        began, value, error, ends = perf_counter(), None, None, False
        try:
            value = await start(self.env, self.name, self.args, self.kwargs)
            if self.then_reset and _has_ended(value):
                value, ends = copy_of(value), True  # the reset may change the objects
        except BaseException as raised:  # a SystemExit would end the loop
            error = raised
        self.seconds = perf_counter() - began
        self.outcome = value, error
        if ends:
            self.on_outcome()
            reset_outcome = await outcome_of(started(self.env, "reset", (), {}))
            self.seconds = perf_counter() - began
            self.reset_outcome = reset_outcome
        self.is_finished, self.task = True, None
        self.on_outcome()


Calls = Mapping[int, AwaitedCall]  # calls of one command, by place in the group


def begin(calls: Calls) -> None:
    """Start calls in the loop's thread, unless they were started before."""
    for call in calls.values():
        if call.task is None and not call.is_finished:
            call.task = asyncio.ensure_future(call.run())


def cancel(calls: Calls) -> None:
    for task in running_tasks(calls).values():
        task.cancel()


def running_tasks(calls: Calls) -> dict[int, asyncio.Task[Any]]:
    return {i: task for i, call in calls.items() if (task := call.task) is not None}


def all_of(calls: Calls) -> Awaitable[Any]:
    """Start calls and return an awaitable for all; a single call runs in the current task."""
    if len(calls) == 1:
        (call,) = calls.values()
        call.task = asyncio.current_task()
        return call.run()
    begin(calls)
    return asyncio.wait(running_tasks(calls).values())


async def started(*call: Any) -> Any:
    return await start(*call)


def start(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Awaitable[Any]:
    """Make a call; raise if a wrapper reads the result instead of returning the awaitable."""
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
    reads = _reads(own, name)
    raise BadValueError(f"{name} returned {describe(result)}, not an awaitable: {reads}")


def _reads(layer: Any, name: str) -> str:
    return (
        f"{type(layer).__name__} uses the result of {name} without awaiting it, but {name} is "
        "'async def'. Use only wrappers that return the result unchanged or whose reset and step "
        "are 'async def'; alternatively, wrap the vectorized environment. To keep gymnasium.make "
        "from adding such wrappers, pass disable_env_checker=True and register the id without "
        "max_episode_steps"
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
        return to_bool("terminated", terminated) or to_bool("truncated", truncated)
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
