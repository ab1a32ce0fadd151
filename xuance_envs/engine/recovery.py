"""Recovery from failures: the restart policy, and recordings for reproducing or resuming steps.

States are saved periodically, and the actions and results after each save are recorded outside the
worker. A new worker loads the states, replays the steps, compares each result with the recorded one
and runs the failed step. If the replay diverges or the worker fails again, the episodes
are truncated as in :class:`~xuance_envs.engine.restarts.RestartingDriver`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, SavingDriver
from xuance_envs.engine.group.group_states import packed_registry
from xuance_envs.engine.group.outcome import ResultWithStates
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.replay_log import STATE_CHANGING_COMMANDS, LastSnapshot, ReplayLog
from xuance_envs.engine.serialization import dumps_for_worker, loads
from xuance_envs.errors import EnvError, StateError, WorkerDiedError, WorkerTimeoutError, name_envs
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.file_format import header_of, write, write_file
from xuance_envs.state.pickling import dumps_plain

logger = logging.getLogger("xuance_envs")

Command = tuple[str, Sequence[Any]]  # a group command and its arguments

WorkerFailure = EnvError | WorkerDiedError | WorkerTimeoutError

_EXTRA = "failure"  # key of a failure file's actions and functions

_NOT_RESUMED = "the episodes of %s are truncated instead of resumed: %s"
_CANNOT_RESUME = (
    "from now on, failed workers are restarted instead of resumed, because new environments repeat "
    "the steps of %s differently: %s"
)
_NOT_VERIFIED = "did not verify that failed workers can be resumed exactly: %s"

# Wanted and minimum number of steps to replay once, to verify that workers can be resumed.
_VERIFIED_STEPS, _MIN_VERIFIED_STEPS = 32, 2

_MAX_COST_FACTOR = 4  # maximum cost of a save, as a multiple of its cost without the transfer


@dataclass
class RestartPolicy:
    """Restart settings and the number of restarts used, shared by all workers."""

    limit: int | None
    on_exception: bool = False
    resumes: bool = False
    raises: bool = False
    count: int = 0

    def consume(self, error: WorkerFailure) -> None:
        """Count a restart, or raise the error if no restarts are left."""
        if self.raises:
            raise error
        if self.limit is not None and self.count >= self.limit:
            exhausted = f"no restarts left: max_restarts={self.limit} reached"
            logger.error("%s", exhausted)
            if isinstance(error, EnvError):
                error.reason = f"{error.reason} ({exhausted})"
            else:
                error.details = f"{error.details}\n{exhausted}".lstrip()
            raise error
        self.count += 1
        limit = "no limit" if self.limit is None else f"at most {self.limit}"
        # Log a string, because logging handlers that store records would keep the error's arrays.
        logger.warning("restart %d (%s): %s", self.count, limit, str(error))


class NotResumedError(WorkerDiedError):
    """A new worker could not repeat the steps since the last saved states."""

    @override
    def __str__(self) -> str:
        return _NOT_RESUMED % (name_envs(self.env_indices), self.details)


class FailureRecord:
    """Content of a failure file; reading it unpickles functions, so the file must be trusted."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        header = header_of(data)
        self.states = EnvStates.from_bytes(data, trusted=True)
        content = self.states.shared_extra(_EXTRA)
        if content is None:
            raise StateError(
                -1, "replay", f"{path}: expected a recorded failure, got a file of saved states"
            )
        self.what: str = header[_EXTRA]["what"]
        self.first: int = header[_EXTRA]["first"]
        functions, self.actions = content
        self.functions, self.keywords = loads(functions)


class Recording:
    """Records of a group for failure files and for resuming its worker."""

    def __init__(
        self, arrays: StepArrays, folder: str | Path | None, recipe: Recipe, policy: RestartPolicy
    ) -> None:
        self.log = ReplayLog(arrays)
        self.recipe = recipe  # with which the environments were created
        self.folder = None if folder is None else Path(folder)  # of failure files, if wanted
        self._num_files = 0
        self.policy = policy
        self.tried = False  # True if the current worker tries to resume
        # The log before the last save: tag of the saving step, states and actions.
        self._before: tuple[int | None, Any, list[Any]] = None, None, []
        self._failed_tag: int | None = None

    # -- failure files ----------------------------------------------------------------

    def keep_log(self, tag: int) -> None:
        """Keep the log for failure files before the states saved by request ``tag`` replace it."""
        if self.folder is not None and self._before[0] != tag:
            self._before = tag, self.log.states, self._steps()

    def write_error(self, error: WorkerFailure, tag: int, command: str) -> None:
        """Write a file if the error is a failure of an environment or a worker."""
        is_failure = not isinstance(error, EnvError) or (
            not isinstance(error, StateError) and error.command in ("step", "reset")
        )
        if is_failure and tag != self._failed_tag:
            self.write(str(error), tag, command)
            self._failed_tag = tag

    def write(self, what: str, tag: int, command: str) -> None:
        """Write a failure file if request ``tag`` is a step; if this fails, log a warning."""
        if self.folder is None or command != "step" or self.tried:
            return
        saving_tag, states, actions = self._before
        if saving_tag != tag:
            states, actions = self.log.states, self._steps()
        if states is None:
            logger.warning("failure not recorded: no environment states were saved before it")
            return
        try:
            recipe, first = self.recipe, self.recipe.first
            functions = list(recipe.env_fns), [dict(each) for each in recipe.keywords]
            content = dumps_for_worker(functions), actions
            saved = EnvStates.from_groups(*states)
            data = write(
                saved.envs,
                saved.facts,
                {_EXTRA: dumps_plain(content)},
                failure={"what": what, "first": first, "steps": len(actions)},
            )
            self.folder.mkdir(parents=True, exist_ok=True)
            timestamp = time.strftime("%Y%m%d-%H%M%S")
            name = f"{timestamp}-{os.getpid()}-env{first}-{self._num_files}.xenvs"
            path = self.folder / name
            write_file(path, data)
        except Exception:
            # The original failure is raised next, so this one is only logged.
            logger.warning("failure not recorded: writing the file failed", exc_info=True)
            return
        self._num_files += 1
        logger.warning(
            "failure recorded in %s; reproduce it with: python -m xuance_envs replay %s", path, path
        )

    def _steps(self) -> list[Any]:
        """Return the actions since the states were saved, including the current step's."""
        return [*self.log.steps(), [part.copy() for part in self.log.actions]]

    # -- resumption -------------------------------------------------------------------

    def plan(self, error: WorkerFailure, envs: Sequence[int], to_truncate: bool) -> bool:
        """Decide whether the next worker resumes; if not, restart the log."""
        obstacle = ""
        if self.tried:
            obstacle = "the new worker failed as well"
        elif to_truncate:
            obstacle = "an earlier restart has reset these environments"
        elif self.log.states is None:
            obstacle = self.log.disabled or "their states were not saved yet"
        if self.policy.resumes and not obstacle:
            return True
        if self.policy.resumes and not isinstance(error, NotResumedError):
            logger.warning(_NOT_RESUMED, name_envs(envs), obstacle)
        self.log.reset(None)
        return False

    def resume_command(self, then: Command | None) -> Command:
        """Return the command by which a new worker resumes and then runs ``then``."""
        self.tried = True
        log = self.log
        return "resume", (log.states, log.copies(), packed_registry(), then)


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
        self._finds_nan = recording.folder is not None
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
        self._began = time.perf_counter()
        registry = None if self.shares_objects else packed_registry()
        self._driver.submit_and_save(tag, packed, registry, self._log_to_verify())

    def _log_to_verify(self) -> tuple[Any, Any] | None:
        """Return the log if a replay of it should be verified now."""
        log = self._replay_log
        if not self._verify_next or log.states is None or log.count < _MIN_VERIFIED_STEPS:
            return None
        self._verify_next = False
        if self._driver.limits_steps:
            logger.warning(_NOT_VERIFIED, "creating new environments may exceed step_timeout")
            return None
        return log.states, log.copies()

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
                count = log.record(None if self._snapshot is None else self._snapshot.last_step)
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
        elif not (recording.policy.resumes or recording.folder):
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
        waited = time.perf_counter() - self._began - duration
        # The main process may have requested the result late, hence the upper bound.
        return max(result.cost, min(waited, _MAX_COST_FACTOR * result.cost))
