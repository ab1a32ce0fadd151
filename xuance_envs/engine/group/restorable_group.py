"""Environment group that can save and replace its environments' states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
    StepExtras,
)
from xuance_envs.engine.group.single_env import EnvDescription, ResetOnStep
from xuance_envs.engine.group.step_results import StepInfos

if TYPE_CHECKING:
    from xuance_envs.engine.group.stored_states import StoredStates


class RestorableGroup(EnvGroup):
    """Group that returns and replaces its environments' acting states."""

    @override
    def attach(self, arrays: StepArrays) -> None:
        super().attach(arrays)
        self.arrays = arrays
        self._columns = InfoColumns(arrays.infos, 1), InfoColumns(arrays.reset_infos, 1)
        self._layout_versions = [-1, -1]  # table versions that these columns reflect
        self._group_of = np.zeros(len(self.envs), np.intp)

    def acting_state(self, i: int) -> ActingState:
        after_reset, rest = self._acting_source(i)
        rests = {} if rest is None else {i: (self.thaw, rest)}
        leaves = [
            (None if part[i] is None else self.thaw(part[i]))
            if isinstance(part, list)
            else part[i].copy()
            for part in (self._reset_observations if after_reset else self._observations).parts
        ]
        stepped = self._step_targets[i]
        return ActingState(
            leaves,
            self._info_columns(after_reset).batch(self._group_of, rests, np.array([i])).build(0, i),
            bool(self._pending[i]),
            stepped.arguments if type(stepped) is ResetOnStep else {},
        )

    def fits_observation_space(self, leaves: Sequence[Any]) -> bool:
        parts = self._observations.parts
        return len(leaves) == len(parts) and all(
            isinstance(part, list)
            or (isinstance(leaf, np.ndarray | np.generic) and _fits(leaf, part))
            for part, leaf in zip(parts, leaves, strict=True)
        )

    def set_acting_states(self, acting_states: Mapping[int, ActingState]) -> Outcome:
        """Replace the acting states of environments whose states were loaded."""
        self._begin_for(acting_states)
        for i, acting_state in acting_states.items():
            for part, leaf in zip(self._observations.parts, acting_state.leaves, strict=True):
                is_object = isinstance(part, list) and leaf is not None
                part[i] = self._freeze(leaf) if is_object else leaf
            self._infos.write(i, acting_state.info)
            self._reset_results[i] = acting_state
            self._pending[i] = acting_state.pending
            self._step_targets[i] = self.envs[i]
            if acting_state.pending and self._autoreset is Autoreset.NEXT_STEP:
                self._reset_in_next_step(i, acting_state.arguments)
        self._update_masks(list(acting_states))
        return self.outcome()

    def infos_of_step(self, outcome: Outcome) -> StepInfos:
        """Return the infos of the last step, which had this outcome."""
        infos = self._info_columns(False).batch(self._group_of, {})
        resets = self._info_columns(True).batch(self._group_of, {}) if outcome.ended else None
        return StepInfos(infos, resets, outcome.rest or StepExtras())

    def step_with_actions(self, actions: Sequence[NDArray[Any]]) -> Outcome:
        """Step with these action leaves, and restore those in the arrays afterwards."""
        kept = [part.copy() for part in self._actions.parts]
        try:
            for part, leaf in zip(self._actions.parts, actions, strict=True):
                part[...] = leaf
            return self.step()
        finally:
            for part, leaf in zip(self._actions.parts, kept, strict=True):
                part[...] = leaf

    def make_twin(self) -> RestorableGroup:
        """Create the same environments again, as another group."""
        freeze_info = self._freeze_info
        twin = RestorableGroup(self.recipe, self._freeze, thaw=self.thaw, freeze_info=freeze_info)
        described = EnvDescription.of(twin.envs[0])
        spaces = described.observation_space, described.action_space
        twin.attach(StepArrays.allocate(*spaces, len(twin.envs)))
        return twin

    def resend_columns_next(self) -> None:
        self._outcomes.resend_columns()

    def flag_in_infos(self, key: str) -> None:
        """Add ``key: True`` to all infos of the last command."""
        rests = {i: (self.thaw, rest) for i, rest in self._infos.rest.items()}
        batch = self._info_columns(False).batch(self._group_of, rests)
        for i in range(len(self.envs)):
            self._infos.write(i, {**batch.build(i, i), key: True})

    def _info_columns(self, for_resets: bool) -> InfoColumns:
        """Return a reader of infos or reset infos with the current column layout."""
        table = (self._reset_infos if for_resets else self._infos).table
        columns = self._columns[for_resets]
        if self._layout_versions[for_resets] != table.version:
            columns.set_layout(0, table.layout)
            self._layout_versions[for_resets] = table.version
        return columns

    def command(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.states if name in STATE_COMMANDS else self, name)
        return method

    @cached_property
    def states(self) -> StoredStates:
        # Imported here because every worker loads this module, but few save states.
        from xuance_envs.engine.group.stored_states import StoredStates

        return StoredStates(self, self._first, self._autoreset)


def _fits(leaf: Any, part: NDArray[Any]) -> bool:
    return bool(leaf.shape == part.shape[1:] and leaf.dtype == part.dtype)
