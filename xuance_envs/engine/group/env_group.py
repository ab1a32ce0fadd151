"""Group that steps, resets and autoresets its environments in series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_writer import InfoWriter
from xuance_envs.engine.data.mask_layout import MASK_METHOD, store_mask
from xuance_envs.engine.data.reward_rows import rewards_of
from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row, SpaceRows
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.base_env_group import NO_RESULT, BaseEnvGroup
from xuance_envs.engine.group.outcome import OK, Autoreset, Outcome, OutcomeBuilder, Reset
from xuance_envs.engine.group.recipe import reset_arguments
from xuance_envs.engine.group.single_env import ResetOnStep, find_layer, get_attribute, to_bool
from xuance_envs.engine.group.step_clock import NO_ACTIVE_ENV, StepClock
from xuance_envs.engine.group.step_results import StepDigests

_NOT_STARTED = 0, NO_RESULT
_ALL = slice(None)

# Raised when a value does not fit a fast row. Older NumPy versions warn when an array is converted
# to a number.
_STORE_ERRORS = (TypeError, ValueError, NotImplementedError, DeprecationWarning)

# Raised when a mask does not fit a fast row.
_MASK_ERRORS = (LookupError, TypeError, ValueError, NotImplementedError, BufferError)


class GroupMasks:
    """Action masks from the methods of a group's environments."""

    def __init__(self, rows: SpaceRows | None, pending: NDArray[np.bool_]) -> None:
        self.mask_methods: dict[int, Callable[[], Any]] = {}
        self.current_env = 0
        self._rows = rows
        self._pending = memoryview(pending)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        flat = None if rows is None else rows.flat
        # One per environment: assignment checks and copies a bool array in C.
        self._memoryviews = [] if flat is None else [memoryview(row) for row in flat]

    def add(self, env: Any, i: int, read: bool) -> list[Any] | None:
        """Store environment i's mask method; return its mask if it should and can be read."""
        owner = find_layer(env, MASK_METHOD)
        if owner is None:
            return None
        self.mask_methods[i] = get_attribute(owner, MASK_METHOD)
        if self._rows is None or not read:
            return None
        try:
            self.update([i], [0])
        except BaseException:
            del self.mask_methods[i]
            raise
        return [part[i] for part in self._rows.parts]

    def update(self, places: Iterable[int], active_env: Any) -> None:
        """Call the stored mask methods for ``places``, except while a reset is pending."""
        pending, memoryviews = self._pending, self._memoryviews
        for i in places:
            method = self.mask_methods.get(i)
            if method is None or pending[i]:
                continue
            self.current_env = i
            active_env[0] = i + 1
            mask = method()
            try:
                memoryviews[i][_ALL] = mask
            except _MASK_ERRORS:
                assert self._rows is not None
                store_mask(self._rows, i, mask)


class EnvGroup(BaseEnvGroup):
    """Environments stepped in series."""

    def attach(self, arrays: StepArrays) -> None:
        n = len(self.envs)
        self.arrays = arrays
        self._places = range(n)
        self._rows: list[Row] = arrays.observations.rows(n, self._freeze)
        self._reset_rows: list[Row] = arrays.reset_observations.rows(n, self._freeze)
        self._read_actions = arrays.actions.reader()
        self._given_actions: list[Any] | None = None
        rewards = rewards_of(arrays.rewards)
        self._rewards, self._put_reward = rewards.target, rewards.put
        self._zero_reward, self._unstepped_rewards = rewards.zero, rewards.unstepped
        arrays.clear()
        self._digests = StepDigests.of(arrays)
        self._infos = InfoWriter(arrays.infos, self._freeze_info)
        self._reset_infos = InfoWriter(arrays.reset_infos, self._freeze_info)
        self._masks = GroupMasks(arrays.masks, arrays.pending)
        self._outcomes = OutcomeBuilder(
            self._infos,
            self._reset_infos,
            self._masks.mask_methods,
            arrays.observations.objects,
            arrays.reset_observations.objects,
        )
        self.clock = StepClock(n, self._progress.times)
        # Objects whose methods are called. For one step, a ResetOnStep may replace an environment.
        self._targets: list[Any] = self.envs
        self._step_targets: list[Any] = list(self._targets)
        self._reset_instead: list[int] = []
        # _plain: True if the last command was a step that left nothing for the next one to clear.
        self._ended = self._plain = False
        self._last_reset = -1
        # Acting sources (see _acting_source) of environments outside the last command.
        self._sources_of_others: dict[int, tuple[bool, Any]] = {}
        # For resuming after an interrupt: the results of resets, the number of the last step, and
        # the index and result of the environment at which it stopped.
        self._reset_results: defaultdict[int, Any] = defaultdict()
        self._step_id: int | None = None
        self._interrupted_at = _NOT_STARTED

    @property
    def extents(self) -> tuple[tuple[int, int], tuple[int, int], bool]:
        """Extent of infos, extent of reset infos, and True if action masks are in use."""
        layouts = self._infos.table.layout, self._reset_infos.table.layout
        return layouts[0].extent, layouts[1].extent, bool(self._masks.mask_methods)

    def step(
        self,
        actions: list[list[Any]] | None = None,
        number: int | None = None,
        places: Collection[int] | None = None,
    ) -> Outcome:
        """Step and autoreset; a call with the same ``number`` resumes an interrupted step."""
        rewards = self._rewards
        write_info = self._infos.write
        known_info = self._infos.table.keys
        began = perf_counter()
        resuming = number is not None and number == self._step_id
        i, result = self._interrupted_at if resuming else _NOT_STARTED
        start = 0
        try:
            if resuming:
                start = self._resume(i, result)
            else:
                if places is not None:
                    self._begin_for(places, actions)
                elif actions is not None or not (self._plain and self._outcomes.is_ok):
                    self._begin(actions)
                rewards[_ALL] = self._unstepped_rewards
                # One statement without calls, so an interrupt cannot come halfway.
                self._interrupted_at, self._step_id, self._plain = _NOT_STARTED, number, False
            given = self._given_actions
            actions_taken = self._read_actions() if given is None else given
            # zip stops at the end of its first argument. Finding the end of the actions is slow.
            items: Iterator[Any] = zip(self._places, self._step_targets, actions_taken, self._rows)  # noqa: B905  # strict costs time
            if places is not None:
                items = self._select(places, items, start)
            elif start:
                items = islice(items, start, None)
            elif self.clock.profiles_next_step:
                items = self.clock.time_each_env(items)
            for i, env, action, row in items:
                result = NO_RESULT
                result = env.step(action)
                observation, reward, terminated, truncated, info = result
                try:
                    row[_ALL] = observation
                    rewards[i] = reward
                except _STORE_ERRORS:
                    self._store(i, observation, reward)
                if known_info or type(info) is not dict or info:
                    write_info(i, info)
                if terminated is not False or truncated is not False:
                    self._store_episode_end(i, terminated, truncated)
                pass  # else an interrupt at the final "if" would skip the handler in Python 3.12
            self._interrupted_at = i, result
        except BaseException as error:
            self._interrupted_at = i, result
            raise self._failure(i, error, result) from error
        for i in self._reset_instead:
            self.arrays.pending[i] = False
            self._step_targets[i] = self._targets[i]
        if self._masks.mask_methods:
            self._update_masks(self._masks.mask_methods if places is None else places)
        if self.arrays.outputs is not None:
            self.arrays.outputs.fill(self.arrays.observations)
        if self._digests is not None:
            self._digests.update(with_resets=self._last_reset >= 0)
        self.clock.stop(began)
        unusual = self._ended or self._reset_results or self._infos.changed or given
        self._plain = places is None and not unusual and self._outcomes.is_ok
        return OK if self._plain else self.outcome()

    def reset(self, resets: Sequence[Reset]) -> Outcome:
        """Reset some environments; observations and infos go to the same arrays as in a step."""
        self._begin_for([i for i, *_ in resets])
        for i, seed, options in resets:
            given = reset_arguments(seed, options)
            self._rewards[i] = self._zero_reward
            try:
                self._reset(i, (self.arrays.observations, self._rows, self._infos), given)
            except BaseException as error:
                raise self._failure(i, error) from error
            self.arrays.pending[i] = False
            self._step_targets[i] = self._targets[i]
            self._update_masks([i])
        return self.outcome()

    def watch_masks(self, places: Sequence[int], read: bool = True) -> list[Any]:
        """Start calling the mask methods of some environments in each new state."""
        if not self._masks.mask_methods:
            self._outcomes.resend_columns()  # the flag for masks is sent with the column layouts
        return self.each(MASK_METHOD, places, partial(self._masks.add, read=read), None, places)

    # -- acting states ----------------------------------------------------------------

    def _acting_source(self, i: int) -> tuple[bool, Any]:
        """Return (True if the agent acts on the reset arrays, info values outside columns)."""
        if i in self._sources_of_others:
            return self._sources_of_others[i]
        ended = self._ended and bool(self.arrays.terminated[i] or self.arrays.truncated[i])
        after_reset = ended and self._autoreset is Autoreset.SAME_STEP
        return after_reset, (self._reset_infos if after_reset else self._infos).rest.get(i)

    def _begin_for(self, places: Collection[int], actions: list[list[Any]] | None = None) -> None:
        """Begin a command for some environments; the acting states of the others do not change."""
        others = {i: self._acting_source(i) for i in range(len(self.envs)) if i not in places}
        self._begin(actions)
        storages = self.arrays.observations.objects, self.arrays.reset_observations.objects
        for values, firsts in zip(*storages, strict=True):  # the outcome reports all of them
            for i, (after_reset, _) in others.items():
                if after_reset:
                    values[i] = firsts[i]
        self._sources_of_others = others

    # -- parts of a step --------------------------------------------------------------

    def _resume(self, i: int, result: Any) -> int:
        """Finish the interrupted environment's step or reset; return the index to continue from."""
        if self._last_reset == i:
            self._command = "step"
        elif self._command == "reset" and self._autoreset is Autoreset.SAME_STEP:
            self._auto_reset(i, {})
        else:
            self._command = "step"
            if result is NO_RESULT:
                return i
            observation, reward, terminated, truncated, info = result
            self._store(i, observation, reward)
            self._infos.write(i, info)
            self._store_episode_end(i, terminated, truncated)
        return i + 1

    def _select(self, places: Collection[int], items: Iterator[Any], start: int) -> Iterator[Any]:
        """Yield the step's items of the environments at ``places``, from index ``start`` on."""
        for item in items:
            if item[0] not in places:
                self._rewards[item[0]] = self._zero_reward  # replaces the "unstepped" marker
            elif item[0] >= start:
                yield item

    def _load_actions(self, actions: list[list[Any]] | None) -> None:
        if actions is not None and self.arrays.actions.objects:
            self.arrays.actions.load(0, actions)
        elif actions is not None or self._given_actions is not None:
            self._given_actions = None if actions is None else actions[0]

    def _begin(self, actions: list[list[Any]] | None) -> None:
        self._plain = False
        self._load_actions(actions)
        self._outcomes.begin()
        self._infos.changed = False
        self._sources_of_others = {}
        if self._reset_results:
            self._reset_results = defaultdict()
            self._reset_instead = []
        if self._ended:
            self.arrays.terminated[:] = self.arrays.truncated[:] = False
            self._ended, self._last_reset = False, -1
        self._command = "step"

    def _store(self, i: int, observation: Any, reward: Any) -> None:
        """Store an observation and a reward that the fast rows rejected."""
        self._store_observation(i, self.arrays.observations, self._rows, observation)
        self._put_reward(i, reward)

    def _store_observation(self, i: int, storage: SpaceRows, rows: list[Row], value: Any) -> None:
        row = storage.row(i, self._freeze, strict=False)
        try:
            row[:] = value
        except BadValueError as error:
            raise BadValueError(f"invalid observation: {error}") from None
        rows[i] = row

    def _store_episode_end(self, i: int, terminated: Any, truncated: Any) -> None:
        if type(terminated) is not bool:
            terminated = to_bool("terminated", terminated)
        if type(truncated) is not bool:
            truncated = to_bool("truncated", truncated)
        if terminated or truncated:
            self.arrays.terminated[i] = terminated
            self.arrays.truncated[i] = truncated
            self._ended = True
            self._end_episode(i, {})

    def _end_episode(self, i: int, arguments: Mapping[str, Any]) -> None:
        """Reset the environment now, in its next step or never, as the autoreset mode requires."""
        if self._autoreset is Autoreset.SAME_STEP:
            self._auto_reset(i, arguments)
            return
        self.arrays.pending[i] = True
        if self._autoreset is Autoreset.NEXT_STEP:
            self._reset_in_next_step(i, arguments)

    def _reset_in_next_step(self, i: int, arguments: Mapping[str, Any]) -> None:
        reset = partial(self._reset_pending, i, arguments)
        self._step_targets[i] = ResetOnStep(reset, arguments, self._zero_reward)

    def _reset_pending(self, i: int, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        result = self._call_reset(i, arguments)
        self._active_env[0] = NO_ACTIVE_ENV
        self._command = "step"
        self._reset_instead.append(i)
        return result

    def _auto_reset(self, i: int, arguments: Mapping[str, Any]) -> None:
        self._command = "reset"
        to = self.arrays.reset_observations, self._reset_rows, self._reset_infos
        self._reset(i, to, arguments)
        self._last_reset = i
        self._command = "step"

    def _reset(
        self, i: int, to: tuple[SpaceRows, list[Row], InfoWriter], arguments: Mapping[str, Any]
    ) -> None:
        storage, rows, infos = to
        observation, info = self._call_reset(i, arguments)
        try:
            rows[i][:] = observation
        except _STORE_ERRORS:
            self._store_observation(i, storage, rows, observation)
        infos.write(i, info)
        self._active_env[0] = NO_ACTIVE_ENV

    def _call_reset(self, i: int, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        self._command = "reset"
        self._active_env[0] = i + 1
        # In C, so no interrupt can come between the return and storing the result.
        self._reset_results.default_factory = partial(self._targets[i].reset, **arguments)
        result = self._reset_results[i]
        if not isinstance(result, tuple) or len(result) != 2:
            hint = "; declare reset and step as 'async def'" if isawaitable(result) else ""
            raise BadValueError(
                f"reset: expected a tuple (observation, info), got {describe(result)}{hint}"
            )
        return result

    def outcome(self) -> Outcome:
        """Return the command's outcome; call this again if an interrupt prevented the reply."""
        return self._outcomes.outcome(self._last_reset >= 0)

    def _update_masks(self, places: Iterable[int]) -> None:
        previous, self._command = self._command, MASK_METHOD
        try:
            self._masks.update(places, self._active_env)
        except BaseException as error:
            raise self._failure(self._masks.current_env, error) from error
        finally:
            self._command = previous
            self._active_env[0] = NO_ACTIVE_ENV
