"""A few environments stepped in series: the only code that steps, resets and auto-resets.

The serial backend is one group. A worker process is a pipe around one group.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from xuance_envs.engine.data.info_writer import InfoWriter
from xuance_envs.engine.data.masks import MASK_METHOD
from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row, SpaceRows
from xuance_envs.engine.data.step_arrays import UNSTEPPED, StepArrays
from xuance_envs.engine.group.failures import failure_of
from xuance_envs.engine.group.group_masks import GroupMasks
from xuance_envs.engine.group.outcome import Autoreset, Outcome, OutcomeMaker, Reset
from xuance_envs.engine.group.recorder import NOWHERE, Recorder
from xuance_envs.engine.group.single_env import (
    EnvDescription,
    ResetInstead,
    attribute_of,
    check_distinct,
    checked_env,
    close,
    owner_of,
    render,
    scalar_of,
    setting_owner_of,
)
from xuance_envs.engine.group.step_clock import StepClock
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import EnvError

__all__ = ["EnvGroup"]

_NOTHING = object()
_UNTOUCHED = 0, _NOTHING
_ALL = slice(None)

# What tells that a quick way of storing a value does not take it; older NumPys warn of an array
# that is taken for a number.
_NOT_STORED = (TypeError, ValueError, NotImplementedError, DeprecationWarning)
_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


def _never(error: BaseException) -> bool:
    return False


class EnvGroup:
    """Environments stepped in series into their slice of the step's arrays.

    Args:
        env_fns: makes an environment each.
        keywords: keyword arguments for each function.
        first: the index in the vector environment of the first one.
        freeze: makes a copy of an object, such that its environment cannot change it any more.
        recorder: where to say how long steps take and, outside a plain step, which environment
            is at work. In a plain step the rewards tell.
        autoreset: when an environment whose episode ended is reset.
        is_interrupt: whether what came out of an environment is not its own, but was raised for
            the process it is in, as by Ctrl-C. It is then passed on as it is; anything else is an
            :class:`~xuance_envs.errors.EnvError`. A process that is there for its environments
            alone has none.

    Raises:
        EnvError: a function raised, or what it returned is no environment.
        ValueError: two functions returned the same object.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
        first: int,
        freeze: Callable[[Any], Any],
        recorder: Recorder | None = None,
        autoreset: Autoreset = Autoreset.SAME_STEP,
        is_interrupt: Callable[[BaseException], bool] = _never,
    ) -> None:
        self.envs: list[Any] = []
        self._recorder = recorder or Recorder()
        self._at = self._recorder.at
        self._first = first
        self._freeze = freeze
        self._autoreset = autoreset
        self._is_interrupt = is_interrupt
        self._doing = "construct"
        try:
            for i, (env_fn, kwargs) in enumerate(zip(env_fns, keywords, strict=True)):
                self._at[0] = i + 1
                try:
                    self.envs.append(checked_env(env_fn(**kwargs)))
                except BaseException as error:
                    raise self._failure(i, error) from error
            self._at[0] = NOWHERE
            check_distinct(self.envs, first)
        except BaseException:
            with contextlib.suppress(EnvError):
                self.close()
            raise

    def describe(self) -> list[tuple[int, EnvDescription]]:
        """Describes the group's first environment, and the first one that differs from it.

        Returns:
            The index of each in the vector environment, and its description in copies: spaces
            have generators.
        """
        first = EnvDescription.of(self.envs[0])
        other = next((i for i, env in enumerate(self.envs) if first.differs_in(env)), 0)
        described = [(self._first, first)]
        if other:
            described.append((self._first + other, EnvDescription.of(self.envs[other])))
        return copy.deepcopy(described)

    def attach(self, arrays: StepArrays) -> None:
        """Gives the group the arrays it works on: its slice of them."""
        n = len(self.envs)
        self._observations = arrays.observations
        self._reset_observations = arrays.reset_observations
        self._actions = arrays.actions
        self._rows: list[Row] = arrays.observations.rows(n, self._freeze)
        self._reset_rows: list[Row] = arrays.reset_observations.rows(n, self._freeze)
        self._take_actions = arrays.actions.reader()
        self._given_actions: list[Any] | None = None
        self._rewards = memoryview(arrays.rewards)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        self._terminated = arrays.terminated
        self._truncated = arrays.truncated
        self._unstepped = memoryview(UNSTEPPED.repeat(n))  # type: ignore[arg-type]  # as above
        arrays.clear()
        self._pending = arrays.pending
        self._infos = InfoWriter(arrays.infos, self._freeze)
        self._reset_infos = InfoWriter(arrays.reset_infos, self._freeze)
        self._outcomes = OutcomeMaker(self._infos, self._reset_infos)
        self._masks = GroupMasks(arrays.masks, arrays.pending)
        self.clock = StepClock(n, self._recorder.times)
        # What each step calls: the environments, but for those that it resets instead.
        self._stepped: list[Any] = list(self.envs)
        self._reset_instead: list[int] = []
        self._ended = False
        self._last_reset = -1
        # What resets returned, until the next command; the step that was last begun, and where an
        # interrupt left it: the environment, and what its step returned if that is known.
        self._returned: defaultdict[int, Any] = defaultdict()
        self._number: int | None = None
        self._left = _UNTOUCHED

    @property
    def extents(self) -> tuple[tuple[int, int], tuple[int, int], bool]:
        """How much of the arrays is in use: of infos, of the infos of resets, and any masks."""
        infos, resets = self._infos.table.extent, self._reset_infos.table.extent
        return infos, resets, bool(self._masks.watched)

    def step(self, actions: list[list[Any]] | None = None, number: int | None = None) -> Outcome:
        """Steps every environment once, and resets those whose episode ended, if that is the mode.

        After an interrupt, wherever it came, the same number again goes on with the step. Only the
        environment that was in its own ``step`` or ``reset`` is then asked for that again.

        Args:
            actions: the actions' leaves that are held as objects, None where there are none. Where
                none are: one list of actions that environments are given as they are.
            number: a number of this step's own; None where nothing can interrupt it.

        Raises:
            EnvError: an environment raised, or returned what its spaces do not allow.
        """
        rewards = self._rewards
        write_info = self._infos.write
        known_info = self._infos.table.keys
        began = perf_counter()
        again = number is not None and number == self._number
        i, result = self._left if again else _UNTOUCHED
        try:
            start = 0
            if again:
                start = self._resume(i, result)
            else:
                self._begin(actions)
                rewards[_ALL] = self._unstepped
                # No call in between: an interrupt finds a step that was begun, or one that was not.
                self._left, self._number = _UNTOUCHED, number
            given = self._given_actions
            items: Iterator[Any] = enumerate(
                zip(self._stepped, given or self._take_actions(), self._rows)  # noqa: B905  # costs, every step
            )
            if start:
                items = islice(items, start, None)
            elif self.clock.times_each:
                items = self.clock.timed(items)
            for i, (env, action, row) in items:
                result = _NOTHING
                result = env.step(action)
                observation, reward, terminated, truncated, info = result
                try:
                    row[_ALL] = observation
                    rewards[i] = reward
                except _NOT_STORED:
                    self._store(i, observation, reward)
                if known_info or type(info) is not dict or info:
                    write_info(i, info)
                if terminated is not False or truncated is not False:
                    self._mark(i, terminated, truncated)
            self._left = i, result
        except BaseException as error:
            self._left = i, result
            raise self._failure(i, error, result) from error
        if self._masks.watched:
            self._note_masks(self._masks.watched)
        self.clock.stop(began)
        return self._outcome()

    def reset(self, resets: Sequence[Reset]) -> Outcome:
        """Resets some environments; their observations and infos go where a step's would.

        Raises:
            EnvError: an environment raised, or returned what its spaces do not allow.
        """
        self._begin(None)
        for i, seed, options in resets:
            given = {"seed": seed, "options": copy_of(options)}
            given = {name: value for name, value in given.items() if value is not None}
            self._rewards[i] = 0
            try:
                self._reset(i, self._observations, self._rows, self._infos, given)
            except BaseException as error:
                raise self._failure(i, error) from error
            self._pending[i] = False
            self._stepped[i] = self.envs[i]
            self._note_masks([i])
        return self._outcome()

    def revive(self, seeds: Sequence[int | None], infos: Sequence[dict[str, Any]]) -> Outcome:
        """Stands in for a step that lost the environments; these are new ones in their place.

        Their episodes count as truncated, and the next ones begin.

        Args:
            seeds: of each environment's reset, None for none.
            infos: the last known info of each environment.

        Raises:
            EnvError: an environment raised, or returned what its spaces do not allow.
        """
        self._begin(None)
        for i, (seed, info) in enumerate(zip(seeds, infos, strict=True)):
            self._rewards[i] = 0
            self._infos.write(i, {**info, "worker_restarted": True})
            self._truncated[i] = self._ended = True
            given = {} if seed is None else {"seed": seed}
            try:
                self._end(i, given)
            except BaseException as error:
                raise self._failure(i, error) from error
            self._note_masks([i])
        return self._outcome()

    def watch_masks(self, places: Sequence[int], note: bool = True) -> list[Any]:
        """Asks some environments for the masks of their actions, now and in each new state.

        Args:
            places: the environments.
            note: whether now, too.

        Returns:
            The parts of each one's mask; None for one that has no method for that.

        Raises:
            EnvError: one raised, or returned something else.
        """
        watch = self._masks.watch if note else self._masks.expect
        return self._each(MASK_METHOD, places, watch, None, places)

    def call(self, places: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """Calls a method of some environments, each with copies of the arguments."""

        def act(env: Any, _: Any) -> Any:
            own_args, own_kwargs = copy_of((args, kwargs))
            return attribute_of(env, name)(*own_args, **own_kwargs)

        return self._each("call", places, act, name)

    def get_attr(self, places: Sequence[int], name: str) -> list[Any]:
        """Reads an attribute of some environments, reaching through wrappers."""
        return self._each("get_attr", places, lambda env, _: attribute_of(env, name), name)

    def set_attr(self, places: Sequence[int], name: str, values: Sequence[Any]) -> list[None]:
        """Sets an attribute where it is, or else on the innermost environment, to a copy."""
        act = lambda env, value: setattr(env, name, copy_of(value))  # noqa: E731  # as its siblings
        return self._each("set_attr", places, act, name, values, setting_owner_of)

    def apply(
        self, places: Sequence[int], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Calls ``function(env, *arguments)`` for some environments, each with own copies."""
        act = lambda env, values: function(env, *copy_of(values))  # noqa: E731  # as its siblings
        return self._each("call", places, act, None, arguments)

    def render(self, places: Sequence[int], mode: str | None) -> list[Any]:
        """Renders some environments."""
        return self._each("render", places, lambda env, _: render(env, mode))

    def close(self) -> None:
        """Closes every environment, also after one of them failed to, or after an interrupt.

        Raises:
            EnvError: the first environment's that raised.
        """
        self._doing = "close"
        failure: EnvError | None = None
        interrupt: BaseException | None = None
        while self.envs:
            self._at[0] = len(self.envs)
            env = self.envs.pop()
            try:
                close(env)
            except BaseException as error:
                if self._is_interrupt(error):
                    interrupt = error
                    continue
                failure = self._failure(len(self.envs), error)
                failure.__cause__ = error
        if (raised := interrupt or failure) is not None:
            raise raised

    # -- a step's parts ---------------------------------------------------------------

    def _resume(self, i: int, result: Any) -> int:
        """Takes up what an interrupt hit; returns the environment to go on from."""
        if self._last_reset == i:
            self._doing = "step"
        elif self._doing == "reset" and self._autoreset is Autoreset.SAME_STEP:
            self._auto_reset(i, {})
        else:
            self._doing = "step"
            if result is _NOTHING:
                return i
            observation, reward, terminated, truncated, info = result
            self._store(i, observation, reward)
            self._infos.write(i, info)
            self._mark(i, terminated, truncated)
        return i + 1

    def _begin(self, actions: list[list[Any]] | None) -> None:
        """Readies the arrays for a command."""
        if actions is not None and self._actions.objects:
            self._actions.load(0, actions)
        elif actions is not None or self._given_actions is not None:
            self._given_actions = None if actions is None else actions[0]
        self._infos.rest = {}
        self._reset_infos.rest = {}
        self._last_reset = -1
        self._outcomes.begin()
        if self._returned:
            self._returned = defaultdict()
            self._reset_instead = []
        if self._ended:
            self._terminated[:] = False
            self._truncated[:] = False
            self._ended = False
        self._doing = "step"

    def _store(self, i: int, observation: Any, reward: Any) -> None:
        """Stores what the quick way did not take: of another dtype, or not an array."""
        self._store_observation(i, self._observations, self._rows, observation)
        if not isinstance(reward, np.ndarray):
            try:
                self._rewards[i] = reward
                return
            except (TypeError, ValueError):
                pass  # for the reason below
        self._rewards[i] = scalar_of("reward", reward, _FLOAT)

    def _store_observation(
        self, i: int, storage: SpaceRows, rows: list[Row], observation: Any
    ) -> None:
        row = storage.row(i, self._freeze, strict=False)
        try:
            row[:] = observation
        except BadValueError as error:
            raise BadValueError(f"its observation: {error}") from None
        rows[i] = row

    def _mark(self, i: int, terminated: Any, truncated: Any) -> None:
        """Takes note of the flags, and resets the environment if its episode ended."""
        if type(terminated) is not bool:
            terminated = scalar_of("terminated", terminated, _BOOL)
        if type(truncated) is not bool:
            truncated = scalar_of("truncated", truncated, _BOOL)
        if terminated or truncated:
            self._terminated[i] = terminated
            self._truncated[i] = truncated
            self._ended = True
            self._end(i, {})

    def _end(self, i: int, arguments: Mapping[str, Any]) -> None:
        """Resets an environment whose episode ended, or leaves that to its next step, or at all."""
        if self._autoreset is Autoreset.SAME_STEP:
            self._auto_reset(i, arguments)
            return
        self._pending[i] = True
        if self._autoreset is Autoreset.NEXT_STEP:
            self._stepped[i] = ResetInstead(partial(self._reset_pending, i, arguments))

    def _reset_pending(self, i: int, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """Resets the environment in place of its step."""
        result = self._call_reset(i, arguments)
        self._at[0] = NOWHERE
        self._doing = "step"
        self._reset_instead.append(i)
        return result

    def _auto_reset(self, i: int, arguments: Mapping[str, Any]) -> None:
        self._doing = "reset"
        self._reset(i, self._reset_observations, self._reset_rows, self._reset_infos, arguments)
        self._last_reset = i
        self._doing = "step"

    def _reset(
        self,
        i: int,
        storage: SpaceRows,
        rows: list[Row],
        infos: InfoWriter,
        arguments: Mapping[str, Any],
    ) -> None:
        observation, info = self._call_reset(i, arguments)
        try:
            rows[i][:] = observation
        except _NOT_STORED:
            self._store_observation(i, storage, rows, observation)
        infos.write(i, info)
        self._at[0] = NOWHERE

    def _call_reset(self, i: int, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        self._doing = "reset"
        self._at[0] = i + 1
        # All in C: no interrupt can come between the return and taking note of what came.
        self._returned.default_factory = partial(self.envs[i].reset, **arguments)
        result = self._returned[i]
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError(
                f"reset: expected a tuple (observation, info), got {describe(result)}"
            )
        return result

    def _outcome(self) -> Outcome:
        """What goes back besides the arrays; the same again, if an interrupt comes."""
        for i in self._reset_instead:
            self._pending[i] = False
            self._stepped[i] = self.envs[i]
        return self._outcomes.outcome(
            self._last_reset >= 0, self._observations.objects, self._reset_observations.objects
        )

    # -- the rest ---------------------------------------------------------------------

    def _note_masks(self, places: Iterable[int]) -> None:
        """Takes note of masks; to be called for environments that are in new states."""
        doing, self._doing = self._doing, MASK_METHOD
        try:
            self._masks.note(places, self._at)
        except BaseException as error:
            raise self._failure(self._masks.asking, error) from error
        finally:
            self._doing = doing
            self._at[0] = NOWHERE

    def _each(
        self,
        command: str,
        places: Sequence[int],
        act: Callable[[Any, Any], Any],
        name: str | None = None,
        values: Sequence[Any] | None = None,
        find: Callable[[Any, str], Any] = owner_of,
    ) -> list[Any]:
        """Does something with some environments, or with what in each has the attribute."""
        doing, self._doing = self._doing, command
        results = []
        try:
            for k, i in enumerate(places):
                self._at[0] = i + 1
                env = self.envs[i]
                try:
                    owner = env if name is None else find(env, name)
                    if owner is not None:
                        results.append(act(owner, None if values is None else values[k]))
                        continue
                except BaseException as error:
                    raise self._failure(i, error) from error
                raise AttributeError(
                    f"environment {self._first + i} ({env}) has no attribute {name!r}"
                )
        finally:
            self._doing = doing
            self._at[0] = NOWHERE
        return results

    def _failure(self, i: int, error: BaseException, result: Any = _NOTHING) -> EnvError:
        """The error to raise for what environment i of the group raised or returned.

        Raises:
            BaseException: an interrupt, as it came.
        """
        if self._is_interrupt(error):
            raise error
        returned = () if result is _NOTHING else (result,)
        return failure_of(self._first + i, self._doing, error, *returned)
