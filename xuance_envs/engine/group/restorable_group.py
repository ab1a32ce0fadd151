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
)
from xuance_envs.engine.group.single_env import ResetOnStep

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
            self._step_targets[i] = self._targets[i]
            if acting_state.pending and self._autoreset is Autoreset.NEXT_STEP:
                self._reset_in_next_step(i, acting_state.arguments)
        self._update_masks(list(acting_states))
        return self.outcome()

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
