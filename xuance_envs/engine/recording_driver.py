"""Local driver that records failures."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import GroupDriver
from xuance_envs.engine.failure_files import FailureRecorder
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.replay_log import STATE_CHANGING_COMMANDS, ReplayLog
from xuance_envs.errors import EnvError


class RecordingDriver(GroupDriver):
    """Driver of a local group that keeps a replay log and writes failure files.

    It cannot record a failure that ends the process itself.
    """

    def __init__(
        self, group: ResumableGroup, lo: int, arrays: StepArrays, files: FailureRecorder
    ) -> None:
        super().__init__(group, lo)
        self._files = files
        self._replay_log = ReplayLog(arrays)
        self._steps = False

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        log = self._replay_log
        if actions is not None:
            log.reset(None)
        elif log.enabled and tag >= log.next_save:
            self._save(tag)
        if log.states is not None:
            log.record_step(tag)
        self._steps = True
        super().submit_step(tag, actions)

    @override
    def submit(self, tag: int, packed: Any) -> None:
        self._steps = False
        if packed[0] in STATE_CHANGING_COMMANDS:
            self._replay_log.reset(None)
        super().submit(tag, packed)

    @override
    def result(self, deadline: float | None = None) -> Any:
        if self._result or not self._steps:
            return super().result(deadline)
        try:
            result = super().result(deadline)
        except EnvError as error:
            self._record(str(error))
            raise
        if nan := self._replay_log.find_new_nan(self.lo):
            self._record(nan)
        return result

    def _save(self, tag: int) -> None:
        began = perf_counter()
        states, self._replay_log.disabled = self._group.states_if_any(None)
        self._replay_log.update_interval(perf_counter() - began, self.times().p50, tag)
        self._replay_log.reset(states, tag)

    def _record(self, what: str) -> None:
        self._files.write(self._replay_log.states, self._replay_log.steps(), what)
