"""A few environments stepped in series: the only code that steps, resets and auto-resets.

The serial backend is one group. A worker process is a pipe around one group.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from xuance_envs.engine.black_box import NOWHERE, Recorder
from xuance_envs.engine.infos import InfoWriter
from xuance_envs.engine.single_env import (
    EnvDescription,
    checked_env,
    innermost_of,
    owner_of,
    render,
)
from xuance_envs.engine.space_layout import BadValueError, describe, fit
from xuance_envs.engine.space_rows import Row, SpaceRows
from xuance_envs.engine.step_arrays import UNSTEPPED, StepArrays
from xuance_envs.engine.step_clock import StepClock
from xuance_envs.errors import EnvError

__all__ = [
    "DONE",
    "ENDED",
    "Autoreset",
    "EnvGroup",
    "Outcome",
    "Reset",
    "Rest",
]

Reset = tuple[int, Any, Any]
"""One environment to reset: its place in the group, the seed and the options, or None."""

_NOTHING = object()
_ALL = slice(None)

# What tells that a quick way of storing a value does not take it; older NumPys warn of an array
# that is taken for a number.
_NOT_STORED = (TypeError, ValueError, NotImplementedError, DeprecationWarning)
_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


class Autoreset(Enum):
    """When an environment whose episode ended is reset.

    ``SAME_STEP``: inside the step that ended the episode; what ``VecEnv`` promises.
    ``NEXT_STEP``: the next step resets it instead of stepping it, and ignores its action.
    ``DISABLED``: only when the caller does it.
    """

    SAME_STEP = "same step"
    NEXT_STEP = "next step"
    DISABLED = "disabled"


@dataclass
class Rest:
    """What one command left besides the group's arrays; everything in it is frozen.

    Attributes:
        keys: the keys of the info columns, if there are new ones.
        reset_keys: the same for the infos of the resets.
        infos: by place in the group, what does not fit the columns of an info.
        reset_infos: the same for the infos of the resets.
        observations: the lists of observations' leaves that are held as objects.
        reset_observations: the same for the first observations of the next episodes.
    """

    keys: tuple[str, ...] | None = None
    reset_keys: tuple[str, ...] | None = None
    infos: dict[int, Any] = field(default_factory=dict)
    reset_infos: dict[int, Any] = field(default_factory=dict)
    observations: list[list[Any]] = field(default_factory=list)
    reset_observations: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What came of a command besides what is in the arrays.

    Attributes:
        ended: whether an episode ended, and the next one began in the same step.
        rest: what does not fit the arrays, None if everything does.
    """

    ended: bool = False
    rest: Rest | None = None


DONE = Outcome()
ENDED = Outcome(ended=True)


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
    ) -> None:
        self.envs: list[Any] = []
        self._recorder = recorder or Recorder()
        self._at = self._recorder.at
        self._first = first
        self._freeze = freeze
        self._autoreset = autoreset
        self._doing = "construct"
        try:
            for i, (env_fn, kwargs) in enumerate(zip(env_fns, keywords, strict=True)):
                self._at[0] = i + 1
                try:
                    self.envs.append(checked_env(env_fn(**kwargs)))
                except (Exception, SystemExit) as error:
                    raise self._failure(i, error) from error
            self._at[0] = NOWHERE
            self._check_distinct()
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
        self._rewards = memoryview(arrays.rewards)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        self._terminated = arrays.terminated
        self._truncated = arrays.truncated
        self._unstepped = memoryview(UNSTEPPED.repeat(n))  # type: ignore[arg-type]  # as above
        self._clear(arrays)
        self._pending = arrays.pending
        self._infos = InfoWriter(arrays.infos, self._freeze)
        self._reset_infos = InfoWriter(arrays.reset_infos, self._freeze)
        self.clock = StepClock(n, self._recorder.times)
        self._known_keys = 0
        self._objects = bool(arrays.observations.objects)
        self._steps = [env.step for env in self.envs]
        self._ended = False
        self._interrupted: tuple[int, Any] | None = None
        self._last_reset = -1

    @property
    def columns(self) -> tuple[int, int]:
        """How many columns are in use: of infos, and of the infos of resets."""
        return len(self._infos.keys), len(self._reset_infos.keys)

    @staticmethod
    def _clear(arrays: StepArrays) -> None:
        """Removes what a group may have left in the arrays that had them before."""
        for array in (arrays.terminated, arrays.truncated, arrays.pending):
            array[:] = False
        for infos in (arrays.infos, arrays.reset_infos):
            infos.kinds[:] = 0

    def step(self, actions: list[list[Any]] | None = None) -> Outcome:
        """Steps every environment once, and resets those whose episode ended, if that is the mode.

        An interrupt (:class:`KeyboardInterrupt`) leaves the rest of the step to the next call;
        the environment it hit takes up again what it was doing, a step or a reset.

        Args:
            actions: the actions' leaves that are held as objects, None where there are none.

        Raises:
            EnvError: an environment raised, or returned what its spaces do not allow.
        """
        rewards = self._rewards
        write_info = self._infos.write
        known_info = self._infos.keys
        began = perf_counter()
        i, result = 0, _NOTHING
        try:
            start = 0
            if self._interrupted is None:
                self._begin(actions)
                rewards[_ALL] = self._unstepped
            else:
                i, result = self._interrupted
                start = self._resume(i, result)
            items: Iterator[Any] = enumerate(
                zip(self._steps, self._take_actions(), self._rows)  # noqa: B905  # costs, every step
            )
            if start:
                items = islice(items, start, None)
            elif self.clock.times_each:
                items = self.clock.timed(items)
            for i, (step, action, row) in items:
                result = _NOTHING
                result = step(action)
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
        except (Exception, SystemExit) as error:
            raise self._failure(i, error, result) from error
        except BaseException:
            self._interrupted = (i, result)
            raise
        self.clock.stop(began)
        return self._outcome()

    def reset(self, resets: Sequence[Reset]) -> Outcome:
        """Resets some environments; their observations and infos go where a step's would.

        Raises:
            EnvError: an environment raised, or returned what its spaces do not allow.
        """
        self._interrupted = None
        self._begin(None)
        for i, seed, options in resets:
            given = {"seed": seed, "options": options}
            given = {name: value for name, value in given.items() if value is not None}
            self._rewards[i] = 0
            try:
                self._reset(i, self._observations, self._rows, self._infos, given)
            except (Exception, SystemExit) as error:
                raise self._failure(i, error) from error
            self._pending[i] = False
            self._steps[i] = self.envs[i].step
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
            except (Exception, SystemExit) as error:
                raise self._failure(i, error) from error
        return self._outcome()

    def call(self, places: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """Calls a method of some environments, reaching through wrappers."""
        return self._each("call", places, lambda env, _: getattr(env, name)(*args, **kwargs), name)

    def get_attr(self, places: Sequence[int], name: str) -> list[Any]:
        """Reads an attribute of some environments, reaching through wrappers."""
        return self._each("get_attr", places, lambda env, _: getattr(env, name), name)

    def set_attr(self, places: Sequence[int], name: str, values: Sequence[Any]) -> list[None]:
        """Sets an attribute where it is, or else on the innermost environment."""
        act = lambda env, value: setattr(env, name, value)  # noqa: E731  # as its siblings have it
        return self._each("set_attr", places, act, name, values)

    def apply(
        self, places: Sequence[int], function: Callable[..., Any], arguments: Sequence[Any]
    ) -> list[Any]:
        """Calls ``function(env, *arguments)`` for some environments, with arguments for each."""
        act = lambda env, values: function(env, *values)  # noqa: E731  # as its siblings have it
        return self._each("call", places, act, None, arguments)

    def render(self, places: Sequence[int], mode: str | None) -> list[Any]:
        """Renders some environments."""
        return self._each("render", places, lambda env, _: render(env, mode))

    def close(self) -> None:
        """Closes every environment, also after one of them failed to.

        Raises:
            EnvError: the first environment's that raised.
        """
        self._doing = "close"
        failure: EnvError | None = None
        while self.envs:
            self._at[0] = len(self.envs)
            env = self.envs.pop()
            try:
                if hasattr(env, "close"):
                    env.close()
            except (Exception, SystemExit) as error:
                failure = self._failure(len(self.envs), error)
                failure.__cause__ = error
        if failure is not None:
            raise failure

    # -- a step's parts ---------------------------------------------------------------

    def _resume(self, i: int, result: Any) -> int:
        """Takes up what an interrupt hit; returns the environment to go on from."""
        if self._doing == "reset" and self._autoreset is Autoreset.SAME_STEP:
            self._auto_reset(i, {})
        elif self._last_reset != i:
            if result is _NOTHING:
                self._interrupted = None
                self._doing = "step"
                return i
            observation, reward, terminated, truncated, info = result
            self._store(i, observation, reward)
            self._infos.write(i, info)
            self._mark(i, terminated, truncated)
        self._interrupted = None
        return i + 1

    def _begin(self, actions: list[list[Any]] | None) -> None:
        """Readies the arrays for a command."""
        if actions is not None:
            self._actions.load(0, actions)
        self._infos.rest = {}
        self._reset_infos.rest = {}
        self._last_reset = -1
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
        number = np.asarray(reward)
        try:
            fitted = fit(number.reshape(()) if number.size == 1 else number, _FLOAT, ())
        except BadValueError as error:
            raise BadValueError(f"its reward: {error}") from None
        self._rewards[i] = fitted.item()

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
        terminated = _as_flag("terminated", terminated)
        truncated = _as_flag("truncated", truncated)
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
            self._steps[i] = lambda action: self._reset_as_step(i, arguments)

    def _reset_as_step(
        self, i: int, arguments: Mapping[str, Any]
    ) -> tuple[Any, float, bool, bool, Any]:
        """Resets the environment in place of its step; returns what that step does."""
        observation, info = self._call_reset(i, arguments)
        self._at[0] = NOWHERE
        self._doing = "step"
        self._pending[i] = False
        self._steps[i] = self.envs[i].step
        return observation, 0.0, False, False, info

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
        result = self.envs[i].reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError(
                f"reset: expected a tuple (observation, info), got {describe(result)}"
            )
        return result

    def _outcome(self) -> Outcome:
        """What goes back besides the arrays."""
        infos, reset_infos = self._infos, self._reset_infos
        known = len(infos.keys) + len(reset_infos.keys)
        has_reset = self._last_reset >= 0
        if not (infos.rest or reset_infos.rest or self._objects or known != self._known_keys):
            return ENDED if has_reset else DONE
        rest = Rest(
            infos=infos.rest,
            reset_infos=reset_infos.rest,
            observations=[list(values) for values in self._observations.objects],
        )
        if has_reset:
            rest.reset_observations = [list(v) for v in self._reset_observations.objects]
        if known != self._known_keys:
            self._known_keys = known
            rest.keys, rest.reset_keys = tuple(infos.keys), tuple(reset_infos.keys)
        return Outcome(has_reset, rest)

    # -- the rest ---------------------------------------------------------------------

    def _each(
        self,
        command: str,
        places: Sequence[int],
        act: Callable[[Any, Any], Any],
        name: str | None = None,
        values: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Does something with some environments, or with what in each has the attribute."""
        doing, self._doing = self._doing, command
        results = []
        try:
            for k, i in enumerate(places):
                self._at[0] = i + 1
                env = self.envs[i]
                try:
                    owner = env if name is None else owner_of(env, name)
                    if owner is None and command == "set_attr":
                        owner = innermost_of(env)
                    if owner is not None:
                        results.append(act(owner, None if values is None else values[k]))
                        continue
                except (Exception, SystemExit) as error:
                    raise self._failure(i, error) from error
                raise AttributeError(
                    f"environment {self._first + i} ({env}) has no attribute {name!r}"
                )
        finally:
            self._doing = doing
            self._at[0] = NOWHERE
            if command in ("call", "set_attr"):  # which may have replaced them
                self._steps = [env.step for env in self.envs]
        return results

    def _failure(self, i: int, error: BaseException, result: Any = None) -> EnvError:
        """The error to raise for what environment i of the group raised or returned."""
        own_frame = error.__traceback__ is not None and error.__traceback__.tb_next is None
        if isinstance(error, BadValueError):
            reason = str(error)
        elif self._doing == "step" and own_frame and result is not _NOTHING:
            reason = _why_not_a_step(result) or _told(error)
        else:
            reason = _told(error)
        text = "".join(traceback.format_exception(error))
        return EnvError(self._first + i, self._doing, reason, text)

    def _check_distinct(self) -> None:
        seen: dict[int, int] = {}
        for i, env in enumerate(self.envs):
            if (twin := seen.setdefault(id(env), i)) != i:
                raise ValueError(
                    f"env_fns[{self._first + twin}] and env_fns[{self._first + i}] returned the "
                    "same object: each function has to make an environment of its own"
                )


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose message cannot be had"


def _as_flag(name: str, value: Any) -> bool:
    if type(value) is bool:
        return value
    flag = np.asarray(value)
    try:
        return bool(fit(flag.reshape(()) if flag.size == 1 else flag, _BOOL, ()))
    except BadValueError as error:
        raise BadValueError(f"its {name}: {error}") from None


def _why_not_a_step(result: Any) -> str | None:
    if isinstance(result, tuple) and len(result) == 5:
        return None
    reason = (
        "step: expected a tuple (observation, reward, terminated, truncated, info), "
        f"got {describe(result)}"
    )
    if isinstance(result, tuple) and len(result) == 4:
        reason += "; Gym_Env(..., library='gym') adapts environments of the older gym"
    return reason
