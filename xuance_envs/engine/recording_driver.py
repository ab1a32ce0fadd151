"""Driver that records a group's steps, to reproduce failures and to resume failed workers."""

from __future__ import annotations

import logging
from dataclasses import replace
from operator import attrgetter
from time import perf_counter
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.driver import Driver, SavingDriver
from xuance_envs.engine.group.group_states import packed_registry
from xuance_envs.engine.group.outcome import ResultWithStates
from xuance_envs.engine.recovery import Recording
from xuance_envs.engine.replay_log import STATE_CHANGING_COMMANDS, LastSnapshot
from xuance_envs.errors import EnvError, StateError, WorkerDiedError, WorkerTimeoutError, name_envs

logger = logging.getLogger("xuance_envs")

_CANNOT_RESUME = (
    "from now on, failed workers are restarted instead of resumed, because new environments repeat "
    "the steps of %s differently: %s"
)
_NOT_VERIFIED = "did not verify that failed workers can be resumed exactly: %s"

# Wanted and minimum number of steps to replay once, to verify that workers can be resumed.
_VERIFIED_STEPS, _MIN_VERIFIED_STEPS = 32, 2

_MAX_COST_FACTOR = 4  # maximum cost of a save, as a multiple of its cost without the transfer


class RecordingDriver(Driver):
    """Driver that wraps the driver of a group and keeps the group's replay log."""

    def __init__(
        self, driver: SavingDriver, recording: Recording, snapshot: LastSnapshot | None = None
    ) -> None:
        super().__init__(driver.lo, driver.hi)
        self.runs_in_result = driver.runs_in_result
        self.shares_objects = driver.shares_objects
        self.survives_fork = driver.survives_fork
        self._driver = driver
        self._recording = recording
        self._snapshot = snapshot  # of the results to record; None to record no results
        self._replay_log = recording.log
        self._finds_nan = recording.files is not None
        self._command = "step"
        self._began = 0.0  # submission time of the current request, if it saves states
        self._to_unwrap = False  # True if the current request may save states or restart the log
        self._to_record = False  # True if the current request is a step with actions in the arrays
        self._processed: tuple[int, Any] = driver.tag, None  # the last result and its tag
        self._verify_next = recording.policy.resumes  # until a replay was verified

    tag: Any = property(attrgetter("_driver.tag"))
    fds: Any = property(attrgetter("_driver.fds"))
    reply_deadline: Any = property(attrgetter("_driver.reply_deadline"))
    seeds: Any = property(attrgetter("_driver.seeds"))
    pack_actions: Any = property(attrgetter("_driver.pack_actions"))
    pack: Any = property(attrgetter("_driver.pack"))
    with_buffers: Any = property(attrgetter("_driver.with_buffers"))
    thaw: Any = property(attrgetter("_driver.thaw"))
    times: Any = property(attrgetter("_driver.times"))

    # -- requests ---------------------------------------------------------------------

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        log, self._command = self._replay_log, "step"
        self._to_record = actions is None
        self._to_unwrap = saves = tag >= log.next_save or actions is not None
        if saves and actions is None and not log.disabled and self._driver.can_save:
            self._submit_and_save(tag, None)
        else:
            self._driver.submit_step(tag, actions)

    @override
    def submit(self, tag: int, packed: Any) -> None:
        call = packed[0]  # the command; from a RestartingDriver, the command and its arguments
        self._command = call if isinstance(call, str) else call[0]
        self._to_unwrap, self._to_record = True, False
        changes_state = self._command in STATE_CHANGING_COMMANDS
        if changes_state and not self._replay_log.disabled and self._driver.can_save:
            self._submit_and_save(tag, packed)
        else:
            self._driver.submit(tag, packed)

    def _submit_and_save(self, tag: int, packed: Any) -> None:
        """Submit a command, or a step, and request the states after it."""
        self._began = perf_counter()
        registry = None if self.shares_objects else packed_registry()
        self._driver.submit_and_save(tag, packed, registry, self._log_to_verify())

    def _log_to_verify(self) -> tuple[Any, Any, Any] | None:
        """Return the log if a replay of it should be verified now."""
        log = self._replay_log
        if not (self._verify_next and log.states is not None):
            return None
        steps = log.steps()
        if len(steps) < _MIN_VERIFIED_STEPS:
            return None
        self._verify_next = False
        if self._driver.limits_steps:
            logger.warning(_NOT_VERIFIED, "creating new environments may exceed step_timeout")
            return None
        return log.states, steps, log.results()

    # -- results ----------------------------------------------------------------------

    @override
    def result(self, deadline: float | None = None) -> Any:
        driver, log = self._driver, self._replay_log
        tag = driver.tag
        if self._processed[0] == tag:
            return self._processed[1]
        try:
            # An interrupt repeats all of this.
            result = driver.result(deadline)
            if self._to_unwrap:
                result = self._unwrap_states(result)
            if self._finds_nan and self._command == "step" and (nan := log.find_new_nan(self.lo)):
                self._recording.write(nan, tag, "step")
            count = log.count
            if self._to_record and log.states is not None:
                last = None if self._snapshot is None else self._snapshot.last_step
                count = log.record(last)
        except (EnvError, WorkerDiedError, WorkerTimeoutError) as error:
            self._recording.write_error(error, tag, self._command)
            ran_in_part = isinstance(error, EnvError) and not isinstance(error, StateError)
            if ran_in_part and self._command in STATE_CHANGING_COMMANDS:
                log.reset(None)
            raise
        # No call in between, so that an interrupt finds either both updated or none.
        log.count, self._processed = count, (tag, result)
        return result

    @override
    def discard(self) -> Any:
        if self._driver.discard() is not None:
            return super().discard()
        self._replay_log.reset(None)
        return None

    def _unwrap_states(self, result: Any) -> Any:
        """Restart the replay log if needed, and return the result without states."""
        log, tag, recording = self._replay_log, self.tag, self._recording
        if not isinstance(result, ResultWithStates):
            if self._command in ("step", *STATE_CHANGING_COMMANDS) and not (
                self._to_record and log.has_capacity
            ):
                log.reset(None)
            return result
        recording.keep_log(tag)
        difference, obstacle = result.verified
        if obstacle:
            logger.warning(_NOT_VERIFIED, obstacle)
        if difference and recording.policy.resumes:
            recording.policy.resumes = False
            logger.warning(_CANNOT_RESUME, name_envs(range(self.lo, self.hi)), difference)
        if result.states is None:
            log.disabled = result.refusal
        elif not (recording.policy.resumes or recording.files):
            log.disabled = "a replay of their steps would differ"
            result = replace(result, states=None)
        elif self._command == "step":
            duration = self.times().p50
            log.update_interval(self._cost(result, duration), duration, tag)
        log.reset(result.states, tag)
        self._to_record = False  # the states include the step
        if self._verify_next and result.states is not None:
            log.next_save = tag + _VERIFIED_STEPS
        return result.result

    def _cost(self, result: ResultWithStates, duration: float) -> float:
        """Return the seconds that saving added to a step, including the transfer."""
        if self.runs_in_result:
            return result.cost
        waited = perf_counter() - self._began - duration
        # The main process may have requested the result late, hence the upper bound.
        return max(result.cost, min(waited, _MAX_COST_FACTOR * result.cost))
