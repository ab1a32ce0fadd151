"""A group whose environments can be saved, and put into other states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoColumns
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.env_group import EnvGroup
from xuance_envs.engine.group.outcome import OF_STATES, Autoreset, Outcome, Showing
from xuance_envs.engine.group.single_env import ResetInstead

if TYPE_CHECKING:
    from xuance_envs.engine.group.states import GroupStates

__all__ = ["RestorableGroup"]


class RestorableGroup(EnvGroup):
    """Environments that also show what their next actions are chosen from.

    The arguments are those of :class:`~xuance_envs.engine.group.env_group.EnvGroup`.
    """

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.group.env_group.EnvGroup`."""
        super().attach(arrays)
        self._columns = InfoColumns(arrays.infos, 1), InfoColumns(arrays.reset_infos, 1)
        self._laid_out = [-1, -1]  # the changes that these columns have heard of
        self._group_of = np.zeros(len(self.envs), np.intp)

    def showing(self, i: int) -> Showing:
        """What an environment's next action is chosen from."""
        after_reset, rest = self._whereabouts(i)
        rests = {} if rest is None else {i: (self._thaw, rest)}
        leaves = [
            (None if part[i] is None else self._thaw(part[i]))
            if isinstance(part, list)
            else part[i].copy()
            for part in (self._reset_observations if after_reset else self._observations).parts
        ]
        stepped = self._stepped[i]
        return Showing(
            leaves,
            self._read(after_reset).batch(self._group_of, rests, np.array([i])).build(0, i),
            bool(self._pending[i]),
            stepped.arguments if type(stepped) is ResetInstead else {},
        )

    def can_show(self, leaves: Sequence[Any]) -> bool:
        """Whether these may be an observation's."""
        parts = self._observations.parts
        return len(leaves) == len(parts) and all(
            isinstance(part, list)
            or (isinstance(leaf, np.ndarray | np.generic) and _fits(leaf, part))
            for part, leaf in zip(parts, leaves, strict=True)
        )

    def show(self, showings: Mapping[int, Showing]) -> Outcome:
        """Has environments that were given other states show what belongs to these."""
        self._begin_with(showings)
        for i, showing in showings.items():
            for part, leaf in zip(self._observations.parts, showing.leaves, strict=True):
                is_object = isinstance(part, list) and leaf is not None
                part[i] = self._freeze(leaf) if is_object else leaf
            self._infos.write(i, showing.info)
            self._returned[i] = showing
            self._pending[i] = showing.pending
            self._stepped[i] = self.envs[i]
            if showing.pending and self._autoreset is Autoreset.NEXT_STEP:
                self._reset_in_next_step(i, showing.arguments)
        self._note_masks(list(showings))
        return self.outcome()

    def step_with(self, actions: Sequence[NDArray[Any]]) -> Outcome:
        """Steps with these actions' leaves in place of those in the arrays, which stay there."""
        kept = [part.copy() for part in self._actions.parts]
        try:
            for part, leaf in zip(self._actions.parts, actions, strict=True):
                part[...] = leaf
            return self.step()
        finally:
            for part, leaf in zip(self._actions.parts, kept, strict=True):
                part[...] = leaf

    def tell_of_columns(self) -> None:
        """Tells of all columns with the next command: nobody has heard of them yet."""
        self._outcomes.forget()

    def note_in_infos(self, key: str) -> None:
        """Adds a key, whose value is True, to the infos of what was done last."""
        rests = {i: (self._thaw, rest) for i, rest in self._infos.rest.items()}
        batch = self._read(False).batch(self._group_of, rests)
        for i in range(len(self.envs)):
            self._infos.write(i, {**batch.build(i, i), key: True})

    def _read(self, of_resets: bool) -> InfoColumns:
        """The columns of infos as they are now, for reading."""
        table = (self._reset_infos if of_resets else self._infos).table
        columns = self._columns[of_resets]
        if self._laid_out[of_resets] != table.changes:
            columns.set_layout(0, table.layout)
            self._laid_out[of_resets] = table.changes
        return columns

    def command(self, name: str) -> Callable[..., Any]:
        """What does a command: a method of its own, or of what saves and loads."""
        method: Callable[..., Any] = getattr(self.states if name in OF_STATES else self, name)
        return method

    @cached_property
    def states(self) -> GroupStates:
        """Saves and loads the environments."""
        # Here, because every worker imports this module, and few save anything.
        from xuance_envs.engine.group.states import GroupStates

        return GroupStates(self, self._first, self._autoreset)


def _fits(leaf: Any, part: NDArray[Any]) -> bool:
    return bool(leaf.shape == part.shape[1:] and leaf.dtype == part.dtype)
