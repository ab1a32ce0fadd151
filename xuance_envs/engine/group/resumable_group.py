"""Environment group that can be resumed from saved states by replaying later actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.info_batch import InfoColumns
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.env_group import EnvGroup
from xuance_envs.engine.group.outcome import (
    STATE_COMMANDS,
    ActingState,
    Autoreset,
    Outcome,
    ResultWithStates,
)
from xuance_envs.engine.group.recipe import reset_arguments
from xuance_envs.engine.group.single_env import ResetOnStep, spaces_of
from xuance_envs.engine.group.step_results import RESTARTED_KEY, StepCopier, StepCopy
from xuance_envs.errors import EnvError, counted

if TYPE_CHECKING:
    from xuance_envs.engine.group.group_states import GroupStates, SavedStates


class NotResumed(NamedTuple):
    """Result of :meth:`ResumableGroup.resume` if the environments could not be resumed."""

    reason: str


class ResumableGroup(EnvGroup):
    survives_fork = True  # the group works in a forked child, too
    is_asynchronous = False  # True if ``reset`` and ``step`` of all environments are ``async def``

    @override
    def attach(self, arrays: StepArrays) -> None:
        super().attach(arrays)
        group_of = np.zeros(len(self.envs), np.intp)
        self._columns = [InfoColumns(each, group_of) for each in (arrays.infos, arrays.reset_infos)]

    def acting_state(self, i: int) -> ActingState:
        after_reset, rest = self._acting_source(i)
        rests = {} if rest is None else {i: (self.thaw, rest)}
        storage = self.arrays.reset_observations if after_reset else self.arrays.observations
        leaves = [
            (None if part[i] is None else self.thaw(part[i]))
            if isinstance(part, list)
            else part[i].copy()
            for part in storage.parts
        ]
        stepped = self._step_targets[i]
        return ActingState(
            leaves,
            self._info_columns(after_reset).batch(rests, np.array([i])).build(0, i),
            bool(self.arrays.pending[i]),
            stepped.arguments if type(stepped) is ResetOnStep else {},
        )

    def fits_observation_space(self, leaves: Sequence[Any]) -> bool:
        parts = self.arrays.observations.parts
        return len(leaves) == len(parts) and all(
            isinstance(part, list)
            or (
                isinstance(leaf, np.ndarray | np.generic)
                and leaf.shape == part.shape[1:]
                and leaf.dtype == part.dtype
            )
            for part, leaf in zip(parts, leaves, strict=True)
        )

    def set_acting_states(self, acting_states: Mapping[int, ActingState]) -> Outcome:
        """Replace the acting states of environments whose states were loaded."""
        self._begin_for(acting_states)
        for i, acting_state in acting_states.items():
            for part, leaf in zip(self.arrays.observations.parts, acting_state.leaves, strict=True):
                is_object = isinstance(part, list) and leaf is not None
                part[i] = self._freeze(leaf) if is_object else leaf
            self._infos.write(i, acting_state.info)
            self._reset_results[i] = acting_state
            self.arrays.pending[i] = acting_state.pending
            self._step_targets[i] = self._targets[i]
            if acting_state.pending and self._autoreset is Autoreset.NEXT_STEP:
                self._reset_in_next_step(i, acting_state.arguments)
        self._update_masks(list(acting_states))
        return self.outcome()

    def _info_columns(self, for_resets: bool) -> InfoColumns:
        """Return a reader of infos or reset infos with the current column layout."""
        layout = (self._reset_infos if for_resets else self._infos).table.layout
        columns = self._columns[for_resets]
        if columns.layouts[0] is not layout:
            columns.set_layout(0, layout)
        return columns

    def command(self, name: str) -> Callable[..., Any]:
        of_states = name in STATE_COMMANDS and not hasattr(self, name)
        method: Callable[..., Any] = getattr(self.states if of_states else self, name)
        return method

    @cached_property
    def states(self) -> GroupStates:
        # Imported here because every worker loads this module, but few save states.
        from xuance_envs.engine.group.group_states import GroupStates

        return GroupStates(self)

    # -- resuming ---------------------------------------------------------------------

    def run_and_save(
        self,
        command: str,
        arguments: Sequence[Any],
        registry: bytes | None,
        logged: tuple[SavedStates, Sequence[StepCopy]] | None = None,
    ) -> ResultWithStates:
        """Run a command and save all environments; if saving one fails, return no states."""
        verified = ("", "") if logged is None else self.verify_replay(*logged, registry)
        result = self.command(command)(*arguments)
        began = perf_counter()
        states, refusal = None, ""
        try:
            states = self.states.save_states(range(len(self.envs)), registry)
        except EnvError as error:
            refusal = str(error)
        return ResultWithStates(result, states, refusal, perf_counter() - began, verified)

    def resume(
        self,
        states: SavedStates,
        steps: Sequence[StepCopy],
        registry: bytes | None,
        next_command: tuple[str, Sequence[Any]] | None,
    ) -> Any:
        """Load states, replay the steps, compare their results and run the next command."""
        try:
            self.states.load_into_new(states, registry)
        except EnvError as error:
            return NotResumed(f"the new worker could not load the saved states: {error}")
        obstacle = self.replay(steps)
        if obstacle:
            return NotResumed(obstacle)
        self._outcomes.resend_columns()  # the main process has the failed worker's layout
        if next_command is None:
            return None
        command, arguments = next_command
        result = self.command(command)(*arguments)
        if command == "step":
            rests = {i: (self.thaw, rest) for i, rest in self._infos.rest.items()}
            batch = self._info_columns(False).batch(rests)
            for i in range(len(self.envs)):
                self._infos.write(i, {**batch.build(i, i), RESTARTED_KEY: True})
            result = self.outcome()
        return result

    def reset_after_restart(
        self, seeds: Sequence[int | None], infos: Sequence[dict[str, Any]], places: Sequence[int]
    ) -> Outcome:
        """Reset environments after a worker restart, and report their episodes as truncated."""
        self._begin_for(places)
        for i in places:
            self._rewards[i] = self._zero_reward
            self._infos.write(i, {**infos[i], RESTARTED_KEY: True})
            self.arrays.truncated[i] = self._ended = True
            given = reset_arguments(seeds[i])
            try:
                if self._autoreset is Autoreset.DISABLED:
                    self._call_reset(i, given)  # seeds the generator; the user resets again
                self._end_episode(i, given)
            except BaseException as error:
                raise self._failure(i, error) from error
            self._update_masks([i])
        return self.outcome()

    def replay(self, steps: Sequence[StepCopy]) -> str:
        """Repeat all steps; return the first failure or difference, or an empty text."""
        copier = StepCopier(self.arrays, self.arrays.actions.parts, with_digests=True)
        first = ""
        for number, step in enumerate(steps, 1):
            repeated = f"in step {number} of {len(steps)} since the last saved states"
            try:
                outcome = self._step_with_actions(copier.actions(step.rows))
            except EnvError as error:
                return first or f"the replay failed {repeated}: {error}"
            if first:
                continue
            infos = self._info_columns(False).snapshot()
            resets = self._info_columns(True).snapshot() if outcome.ended else None
            found = copier.result(copier.copy(infos, resets, outcome.rest))
            difference = copier.result(step).difference(found, self._first, self.thaw)
            if difference is not None:
                first = f"the replay differs {repeated}: {difference}"
        return first

    def verify_replay(
        self, states: SavedStates, steps: Sequence[StepCopy], registry: bytes | None
    ) -> tuple[str, str]:
        """Repeat steps in new environments; return texts (difference, obstacle), empty if none."""
        try:
            freeze_info = self._freeze_info
            twin = type(self)(self.recipe, self._freeze, thaw=self.thaw, freeze_info=freeze_info)
            twin.attach(StepArrays.allocate(spaces_of(twin.envs[0]), len(twin.envs), digests=True))
        except Exception as error:
            return "", f"creating the environments a second time failed: {error}"
        try:
            try:
                twin.states.load_into_new(states, registry)
            except EnvError as error:
                return f"new environments could not load the saved states: {error}", ""
            difference = twin.replay(steps)
            if difference:
                attribute = self.states.first_difference(twin.states)
                if attribute is not None:
                    path, one, other = attribute
                    after = f"After {counted(len(steps), 'step')}"
                    difference += f". {after}, {path} is {one}, and {other} in the replay"
            return difference, ""
        finally:
            with suppress(EnvError):
                twin.close()

    def _step_with_actions(self, actions: Sequence[NDArray[Any]]) -> Outcome:
        """Step with these action leaves, and then restore the arrays' previous actions."""
        kept = [part.copy() for part in self.arrays.actions.parts]
        try:
            for part, leaf in zip(self.arrays.actions.parts, actions, strict=True):
                part[...] = leaf
            return self.step()
        finally:
            for part, leaf in zip(self.arrays.actions.parts, kept, strict=True):
                part[...] = leaf
