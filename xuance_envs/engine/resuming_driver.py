"""Worker restarts that resume: the new worker continues where the failed one stopped.

States are saved periodically, and the actions and results after each save are recorded outside the
worker. A new worker loads the states, replays the steps, compares each result with the recorded one
and runs the failed step. If the replay diverges or the worker fails again, the episodes
are truncated as in :class:`~xuance_envs.engine.restarts.RestartingDriver`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.failure_files import FailureRecorder
from xuance_envs.engine.group.group_states import packed_registry
from xuance_envs.engine.group.outcome import ResultWithStates
from xuance_envs.engine.group.resumable_group import NotResumed
from xuance_envs.engine.replay_log import STATE_CHANGING_COMMANDS, ReplayLog
from xuance_envs.engine.restarts import (
    PREPARING_TAG,
    STEP_OF_ALL,
    RestartingDriver,
    WorkerFailure,
    WorkerState,
)
from xuance_envs.errors import EnvError, StateError, WorkerDiedError, name_envs

logger = logging.getLogger("xuance_envs")

_NOT_RESUMED = "the episodes of %s are truncated instead of resumed: %s"

_CANNOT_RESUME = (
    "from now on, failed workers are restarted instead of resumed, because new environments repeat "
    "the steps of %s differently: %s"
)
_NOT_VERIFIED = "it was not verified that failed workers can be resumed exactly: %s"

_VERIFIED_STEPS, _MIN_VERIFIED_STEPS = 32, 2
"""Steps that new environments repeat once, to verify that they can be resumed."""

_MAX_COST_FACTOR = 4
"""Maximum cost of a save with its transfer, as a multiple of the time for saving alone."""


class _NotResumedError(WorkerDiedError):
    """A new worker could not repeat the steps since the last saved states."""

    @override
    def __str__(self) -> str:
        return _NOT_RESUMED % (name_envs(self.env_indices), self.details)


class ResumingDriver(RestartingDriver):
    """Driver that resumes a failed worker from its replay log.

    If actions have no fixed shape, the log cannot record them, and the worker only restarts.
    """

    def __init__(self, *arguments: Any, files: FailureRecorder | None = None) -> None:
        super().__init__(*arguments)
        self._files = files
        self._replay_log = ReplayLog(self._arrays, with_results=self._restarts.resumes)
        # Submission time of the current request, if it saves states.
        self._began = 0.0
        # True if the current request is a step that is logged without saving states.
        self._is_logged_step = False
        # The log before the last save: tag of the saving step, states and actions.
        self._before: tuple[int | None, Any, list[Any]] = None, None, []
        # True if the next worker should resume; True if a worker has already tried to.
        self._resume_next = self._resume_tried = False
        # True until a replay was verified.
        self._verify_next = self._restarts.resumes

    @override
    def submit_step(self, tag: int, actions: Any) -> None:
        log = self._replay_log
        self._is_logged_step = tag < log.next_save and actions is None
        if self._is_logged_step:
            log.record_step(tag)
            RestartingDriver.submit_step(self, tag, None)  # hot path: super() is slower
        elif actions is not None or self._to_truncate or not log.enabled:
            super().submit_step(tag, actions)
        else:
            if log.states is not None and log.has_capacity:
                log.record_step(tag)
            self._submit_and_save(tag, STEP_OF_ALL)

    @override
    def submit(self, tag: int, packed: Any) -> None:
        call, _ = packed
        self._is_logged_step = False
        if (
            call[0] in STATE_CHANGING_COMMANDS
            and self._replay_log.enabled
            and not self._to_truncate
        ):
            self._submit_and_save(tag, call)
        else:
            super().submit(tag, packed)

    def _submit_and_save(self, tag: int, call: tuple[str, Any]) -> None:
        """Submit a command and request the states after it."""
        self._began = perf_counter()
        logged = self._log_to_verify(tag)
        packed = self._worker.pack("run_and_save", *call, packed_registry(), logged)
        # Errors name the original command.
        super().submit(tag, (call, packed._replace(command=call[0])))

    def _log_to_verify(self, tag: int) -> tuple[Any, Any, Any] | None:
        """Return the log if a replay of it should be verified now."""
        log = self._replay_log
        if not (self._verify_next and log.states is not None):
            return None
        steps = log.steps(before=tag)
        if len(steps) < _MIN_VERIFIED_STEPS:
            return None
        self._verify_next = False
        if self._worker.reply_deadline is not None:
            logger.warning(_NOT_VERIFIED, "creating new environments may exceed step_timeout")
            return None
        return log.states, steps, log.results(before=tag)

    def _take_verified(self, difference: str, obstacle: str) -> None:
        """Process the result of the verification of a replay."""
        if obstacle:
            logger.warning(_NOT_VERIFIED, obstacle)
        if difference and self._restarts.resumes:
            self._restarts.resumes = False
            envs = name_envs(range(self.lo, self.hi))
            logger.warning(_CANNOT_RESUME, envs, difference)

    def _on_ready(self, result: Any) -> None:
        self._check_replay(result)
        self._resume_next = self._resume_tried = False

    def _on_result(self, result: Any) -> None:
        if not self._is_logged_step:
            result = self._unwrap_states(result)
            self._resume_next = self._resume_tried = False
        RestartingDriver._on_result(self, result)
        log = self._replay_log
        if log.last_tag == self.tag:
            log.record_result(self._last_snapshot.step_infos(result))
        if self._files is not None and self._command[0] == "step":
            nan = self._replay_log.find_new_nan(self.lo)
            if nan:
                self._record(nan)

    def _unwrap_states(self, result: Any) -> Any:
        """Restart the replay log if needed, and return the result without states."""
        self._check_replay(result)
        log = self._replay_log
        if not isinstance(result, ResultWithStates):
            if self._command[0] in ("step", *STATE_CHANGING_COMMANDS) and log.last_tag != self.tag:
                log.reset(None)
            return result
        if self._files is not None and self._before[0] != self.tag:
            self._before = self.tag, log.states, self._steps()
        self._take_verified(*result.verified)
        if result.states is None:
            log.disabled = result.refusal
        elif not (self._restarts.resumes or self._files):
            log.disabled = "a replay of their steps would differ"
            result = replace(result, states=None)
        elif self._command[0] == "step":
            duration = self.times().p50
            log.update_interval(self._cost(result, duration), duration, self.tag)
        log.reset(result.states, self.tag)
        if self._verify_next and result.states is not None:
            log.next_save = self.tag + _VERIFIED_STEPS
        return result.result

    def _cost(self, result: ResultWithStates, duration: float) -> float:
        """Return the seconds that saving added to a step, including the transfer."""
        waited = perf_counter() - self._began - duration
        # The main process may have requested the result late, hence the upper bound.
        return max(result.cost, min(waited, _MAX_COST_FACTOR * result.cost))

    def _on_env_error(self, error: EnvError) -> None:
        if not isinstance(error, StateError) and error.command in ("step", "reset"):
            self._record(str(error))

    def _record(self, what: str) -> None:
        if self._files is None or self._command[0] != "step" or self._resume_tried:
            return
        tag, states, steps = self._before
        if tag != self.tag:
            states, steps = self._replay_log.states, self._steps()
        self._files.write(states, steps, what)

    def _steps(self) -> list[Any]:
        """Return the actions since the states were saved, including the current step's."""
        return [*self._replay_log.steps(before=self.tag), self._replay_log.current_actions()]

    # -- worker failure ---------------------------------------------------------------

    def _on_failure(self, error: WorkerFailure) -> None:
        if not isinstance(error, EnvError):
            self._record(str(error))
        super()._on_failure(error)

    def _can_resume(self, error: WorkerFailure) -> bool:
        obstacle = "" if not self._restarts.resumes else self._obstacle()
        self._resume_next = self._restarts.resumes and not obstacle
        self._is_logged_step = False
        if not self._resume_next:
            if obstacle and not isinstance(error, _NotResumedError):
                logger.warning(_NOT_RESUMED, name_envs(range(self.lo, self.hi)), obstacle)
            self._replay_log.reset(None)
        return self._resume_next

    def _obstacle(self) -> str:
        """Return why a new worker cannot continue the episodes; empty if it can."""
        log = self._replay_log
        if self._resume_tried:
            return "the new worker failed as well"
        if self._to_truncate:
            return "they were reset before, and their episodes have not been truncated yet"
        if log.states is None:
            return log.disabled or "their states were not saved yet"
        return ""

    def _restart_worker(self) -> None:
        if not self._resume_next:
            super()._restart_worker()
            return
        command, arguments = self._command
        then = (command, arguments) if command in ("step", "reset") else None
        log = self._replay_log
        steps, results = log.steps(before=self.tag), log.results(before=self.tag)
        resume = "resume", (log.states, steps, results, packed_registry(), then)
        self._resume_tried = True
        tag, state = self.tag, WorkerState.RUNNING
        if then is None:
            tag, state = PREPARING_TAG, WorkerState.PREPARING
        watched = sorted(self._watched)
        self._backend.replace(self._index, tag, self._keywords, self._attributes, watched, resume)
        self._worker_state = state

    def _check_replay(self, result: Any) -> None:
        """Raise if the new worker could not resume."""
        if isinstance(result, NotResumed):
            envs = range(self.lo, self.hi)
            raise _NotResumedError(envs, None, None, self._command[0], result.reason)
