"""A group in this process whose failures leave a file."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import GroupDriver
from xuance_envs.engine.failure_files import FailureFiles
from xuance_envs.engine.group.restorable_group import RestorableGroup
from xuance_envs.engine.trails import CHANGING, Trail
from xuance_envs.errors import EnvError

__all__ = ["RecordingDriver"]


class RecordingDriver(GroupDriver):
    """A group in this process, with what led to where it is.

    States are saved before a step, now and then: what the process itself does not survive leaves
    nothing.

    Args:
        group: the group.
        lo: index of its first environment.
        arrays: its slice of the step's arrays.
        files: where failures are recorded.
    """

    def __init__(
        self, group: RestorableGroup, lo: int, arrays: StepArrays, files: FailureFiles
    ) -> None:
        super().__init__(group, lo)
        self._files = files
        self._trail = Trail(arrays)
        self._steps = False

    def ask_step(self, tag: int, actions: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        trail = self._trail
        if actions is not None:
            trail.begin(None)
        elif trail.is_kept and tag >= trail.until:
            self._save(tag)
        if trail.states is not None:
            trail.note(tag)
        self._steps = True
        super().ask_step(tag, actions)

    def ask(self, tag: int, packed: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        self._steps = False
        if packed[0] in CHANGING:
            self._trail.begin(None)
        super().ask(tag, packed)

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        if self._result or not self._steps:
            return super().result(deadline)
        try:
            result = super().result(deadline)
        except EnvError as error:
            self._record(str(error))
            raise
        if nan := self._trail.new_nan(self.lo):
            self._record(nan)
        return result

    def _save(self, tag: int) -> None:
        began = perf_counter()
        states = self._group.states.states_if_any(None)
        self._trail.is_kept = states is not None
        self._trail.plan(perf_counter() - began, self.times().p50, tag)
        self._trail.begin(states, tag)

    def _record(self, what: str) -> None:
        self._files.write(self._trail.states, self._trail.steps(), what)
