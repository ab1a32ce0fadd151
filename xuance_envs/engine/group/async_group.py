"""Environment group in which some or all environments are asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from time import perf_counter
from types import MappingProxyType
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.awaited_calls import AwaitedCall, Calls, begin, cancel, started
from xuance_envs.engine.group.base_env_group import NO_RESULT, make_env_error
from xuance_envs.engine.group.outcome import Autoreset, Outcome, Reset
from xuance_envs.engine.group.recipe import reset_arguments
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import ResetOnStep, close, find_layer, is_asynchronous
from xuance_envs.engine.group.step_clock import StepClock
from xuance_envs.engine.system.doorbell import Doorbell
from xuance_envs.errors import EnvError
from xuance_envs.event_loops import EventLoop, NotAnExceptionError, outcome_of, value_of

NUDGE_INTERVAL = 0.1  # seconds until calls whose start was interrupted are started again
CLOSE_TIMEOUT = 1.0  # seconds that the loop's thread gets to end


class AsyncGroup(ResumableGroup):
    """Group that starts all calls of asynchronous environments before it waits for the first."""

    survives_fork = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.runs_on_loop = False
        self._loop: EventLoop | None = None
        self._bell = Doorbell()
        self._report: Callable[[], Any] = self._bell.ring
        self.calls: Calls = {}
        self._taken: list[Any] = []
        self._prepared_for: Any = None
        self._closing: dict[int, Any] = {}
        super().__init__(*args, **kwargs)
        self.asynchronous = list(map(is_asynchronous, self.envs))
        self.is_asynchronous = all(self.asynchronous)

    @property
    def loop(self) -> EventLoop:
        if self._loop is None:
            self._loop = EventLoop.in_thread(self, "xuance_envs-coroutines")
        return self._loop

    def move_to(self, loop: EventLoop) -> None:
        """Run all further commands in this loop's thread; some commands then return awaitables."""
        self._loop, self.runs_on_loop, self._report = loop, True, lambda: None

    def divide(self) -> list[AsyncGroup]:
        """Return a group for each environment."""
        parts = []
        for i, env in enumerate(self.envs):
            recipe = replace(self.recipe.part(i, i + 1), first=self._first + i)
            parts.append(AsyncGroup(recipe, self._freeze, envs=[env]))
        return parts

    @override
    def attach(self, arrays: StepArrays) -> None:
        super().attach(arrays)
        self.clock: _AwaitingClock = _AwaitingClock(len(self.envs), self._progress.times)
        # A step takes the actions with which the calls were started.
        self._read_arrays, self._read_actions = self._read_actions, self._taken.copy
        envs = enumerate(zip(self.envs, self.asynchronous, strict=True))
        self._targets = [_AwaitedEnv(self, i) if found else env for i, (env, found) in envs]
        self._step_targets = list(self._targets)

    # -- step and reset ---------------------------------------------------------------

    @override
    def step(
        self, actions: list[list[Any]] | None = None, number: int | None = None, places: Any = None
    ) -> Outcome:
        if number is None or number != self._prepared_for:
            self._start(number, self._step_calls(actions, places))
        return super().step(actions, number, places)

    @override
    def reset(self, resets: Sequence[Reset]) -> Outcome:
        if resets is not self._prepared_for:
            self._start(resets, self._reset_calls(resets))
        return super().reset(resets)

    @override
    def command(self, name: str) -> Callable[..., Any]:
        if name not in ("step", "reset"):
            self._drop_calls()
        return super().command(name)

    def prepare(self, command: str, arguments: Sequence[Any]) -> Calls:
        """Return the calls to await before a command, so that the command need not wait."""
        if command == "step":
            actions, number = arguments
            self._set_calls(number, self._step_calls(actions, None))
        elif command == "reset":
            (resets,) = arguments
            self._set_calls(resets, self._reset_calls(resets))
        else:
            return {}
        return self.calls

    def result_of(self, i: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Wait for the result of a call that was started, or make the call now."""
        call = self.calls.get(i)
        while call is not None and not self.loop.is_stopped:
            is_finished = call.is_finished  # read first: a finished call has all its outcomes
            outcome = call.outcome if name == call.name else call.reset_outcome
            if outcome is not None:
                return value_of(*outcome)
            if is_finished:
                break
            if not self._bell.wait(NUDGE_INTERVAL):
                self.loop.post(partial(begin, self.calls))
        return self.loop.run(started(self.envs[i], name, args, kwargs))

    def _step_calls(self, actions: Any, places: Any) -> dict[int, AwaitedCall]:
        self._load_actions(actions)
        given, calls = self._given_actions, {}
        self._taken[:] = self._read_arrays() if given is None else given
        for i, (target, action) in enumerate(zip(self._step_targets, self._taken, strict=False)):
            if places is None or i in places:
                if type(target) is _AwaitedEnv:
                    calls[i] = self._call(i, "step", (action,), {})
                elif type(target) is ResetOnStep and self.asynchronous[i]:
                    calls[i] = self._call(i, "reset", (), target.arguments)
        return calls

    def _reset_calls(self, resets: Sequence[Reset]) -> dict[int, AwaitedCall]:
        calls = {}
        for i, seed, options in resets:
            if type(self._targets[i]) is _AwaitedEnv:
                calls[i] = self._call(i, "reset", (), reset_arguments(seed, options))
        return calls

    def _call(
        self, i: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> AwaitedCall:
        then_reset = name == "step" and self._autoreset is Autoreset.SAME_STEP
        return AwaitedCall(self.envs[i], name, args, kwargs, then_reset, self._report)

    def _start(self, key: Any, calls: Calls) -> None:
        self._set_calls(key, calls)
        if calls:
            self.loop.post(partial(begin, calls))

    def _set_calls(self, key: Any, calls: Calls) -> None:
        self._drop_calls()
        self.clock.began, self.clock.calls = perf_counter(), calls
        self.calls, self._prepared_for = calls, key

    def _drop_calls(self) -> None:
        """Discard the last calls; cancel those still running after an error or an interrupt."""
        calls, self.calls, self._prepared_for = self.calls, {}, None
        if self._loop is not None:
            self._loop.cancel_interrupted()
        if not all([call.is_finished for call in calls.values()]):
            self.loop.post(partial(cancel, calls))

    # -- other commands ---------------------------------------------------------------

    @override
    def each(
        self,
        command: str,
        places: Sequence[int],
        act: Callable[[Any, Any], Any],
        name: str | None = None,
        values: Sequence[Any] | None = None,
        find: Callable[[Any, str], Any] = find_layer,
    ) -> Any:
        if self.loop.is_current:
            results = super().each(command, places, act, name, values, find)
            found = any(map(isawaitable, results))
            return self._awaited(command, places, results) if found else results
        own = [k for k, i in enumerate(places) if not self.asynchronous[i]]
        if not own:
            return self.loop.run(self._each_on_loop(command, places, act, name, values, find))
        results = [None] * len(places)
        others = [k for k in range(len(places)) if k not in own]
        for part, run in ((own, super().each), (others, self.each)):
            given = [places[k] for k in part], act, name, values and [values[k] for k in part], find
            for k, result in zip(part, run(command, *given) if part else (), strict=True):
                results[k] = result
        return results

    async def _each_on_loop(self, *args: Any) -> Any:
        results = self.each(*args)
        return await results if isawaitable(results) else results

    async def _awaited(
        self, command: str, places: Sequence[int], results: Sequence[Any]
    ) -> list[Any]:
        """Await the results that are awaitables, all together."""
        waiting = {k: outcome_of(each) for k, each in enumerate(results) if isawaitable(each)}
        found = dict(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))
        for k, (_, error) in found.items():
            if error is not None:
                raise make_env_error(self._first + places[k], command, error) from error
        return [found[k][0] if k in found else each for k, each in enumerate(results)]

    @override
    def _failure(self, i: int, error: BaseException, result: Any = NO_RESULT) -> EnvError:
        if isinstance(error, NotAnExceptionError) and error.__cause__ is not None:
            return make_env_error(self._first + i, self._command, error.__cause__)
        if self._loop is not None and self._loop.is_current:  # not an interrupt
            return make_env_error(self._first + i, self._command, error)
        return super()._failure(i, error, result)

    # -- closing ----------------------------------------------------------------------

    @override
    def close(self) -> Any:
        self._drop_calls()
        failure: EnvError | None = None
        try:
            super().close()
        except EnvError as error:
            failure = error
        if not self._closing:
            if failure is not None:
                raise failure
            return None
        if self.runs_on_loop:
            return self._close_together(failure)
        try:
            return self.loop.run(self._close_together(failure))
        finally:
            self.loop.stop(CLOSE_TIMEOUT)

    @override
    def _close(self, env: Any) -> None:
        if is_asynchronous(env):
            self._closing[len(self.envs)] = env
        else:
            super()._close(env)

    async def _close_together(self, failure: EnvError | None) -> None:
        async def close_one(env: Any) -> None:
            if isawaitable(result := close(env)):
                await result

        closing, self._closing = self._closing, {}
        outcomes = await asyncio.gather(*(outcome_of(close_one(e)) for e in closing.values()))
        for i, (_, error) in zip(closing, outcomes, strict=True):
            if error is not None:
                failure = self._failure(i, error)
                failure.__cause__ = error
        if failure is not None:
            raise failure


@dataclass(eq=False)
class _AwaitedEnv:
    """Synchronous view of an asynchronous environment, for the group's ordinary code."""

    _group: AsyncGroup
    _place: int

    def step(self, action: Any) -> Any:
        return self._group.result_of(self._place, "step", (action,), {})

    def reset(self, **kwargs: Any) -> Any:
        return self._group.result_of(self._place, "reset", (), kwargs)


class _AwaitingClock(StepClock):
    """Clock that measures from the start of the environments' steps."""

    began: float | None = None
    calls: Calls = MappingProxyType({})

    @override
    def stop(self, start: float) -> None:
        super().stop(start if self.began is None else self.began)
        self.began = None

    @override
    def _duration(self, place: int, elapsed: float) -> float:
        call = self.calls.get(place)
        return elapsed if call is None else call.seconds
