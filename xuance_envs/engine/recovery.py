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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.group_states import packed_registry
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.replay_log import ReplayLog
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


class FailureRecorder:
    """Writer of failure files for one group."""

    def __init__(self, folder: str | Path, recipe: Recipe) -> None:
        self._folder = Path(folder)
        self._env_fns = list(recipe.env_fns)
        self.keywords = recipe.keywords  # those with which the environments were created
        self._first = recipe.first
        self._count = 0

    def write(self, states: Any, actions: Sequence[Sequence[Any]], what: str) -> Path | None:
        """Write a file and return its path; if this fails, log a warning and return None."""
        if states is None:
            logger.warning("failure not recorded: no environment states were saved before it")
            return None
        try:
            recipe = self._env_fns, [dict(each) for each in self.keywords]
            content = dumps_for_worker(recipe), actions
            saved = EnvStates.from_groups(*states)
            data = write(
                saved.envs,
                saved.facts,
                {_EXTRA: dumps_plain(content)},
                failure={"what": what, "first": self._first, "steps": len(actions)},
            )
            self._folder.mkdir(parents=True, exist_ok=True)
            timestamp = time.strftime("%Y%m%d-%H%M%S")
            name = f"{timestamp}-{os.getpid()}-env{self._first}-{self._count}.xenvs"
            path = self._folder / name
            write_file(path, data)
        except Exception:
            # The original failure is raised next, so this one is only logged.
            logger.warning("failure not recorded: writing the file failed", exc_info=True)
            return None
        self._count += 1
        logger.warning(
            "failure recorded in %s; reproduce it with: python -m xuance_envs replay %s", path, path
        )
        return path


class Recording:
    """Records of a group for failure files and for resuming its worker."""

    def __init__(
        self, arrays: StepArrays, files: FailureRecorder | None, policy: RestartPolicy
    ) -> None:
        self.log = ReplayLog(arrays, with_results=policy.resumes)
        self.files = files
        self.policy = policy
        self.resumes_next = False  # True if the next worker should resume
        self._tried = False  # True if a worker has already tried to resume
        # The log before the last save: tag of the saving step, states and actions.
        self._before: tuple[int | None, Any, list[Any]] = None, None, []
        self._failed_tag: int | None = None

    # -- failure files ----------------------------------------------------------------

    def keep_log(self, tag: int) -> None:
        """Keep the log for failure files before the states saved by request ``tag`` replace it."""
        if self.files is not None and self._before[0] != tag:
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
        """Write a failure file if request ``tag`` is a step."""
        if self.files is None or command != "step" or self._tried:
            return
        saving_tag, states, steps = self._before
        if saving_tag != tag:
            states, steps = self.log.states, self._steps()
        self.files.write(states, steps, what)

    def _steps(self) -> list[Any]:
        """Return the actions since the states were saved, including the current step's."""
        return [*self.log.steps(), [part.copy() for part in self.log.actions]]

    # -- resumption -------------------------------------------------------------------

    def plan(self, error: WorkerFailure, envs: Sequence[int], to_truncate: bool) -> bool:
        """Decide whether the next worker resumes; if not, restart the log."""
        obstacle = self._obstacle(to_truncate) if self.policy.resumes else ""
        self.resumes_next = self.policy.resumes and not obstacle
        if not self.resumes_next:
            if obstacle and not isinstance(error, NotResumedError):
                logger.warning(_NOT_RESUMED, name_envs(envs), obstacle)
            self.log.reset(None)
        return self.resumes_next

    def _obstacle(self, to_truncate: bool) -> str:
        """Return the reason why a new worker cannot continue the episodes; empty if it can."""
        if self._tried:
            return "the new worker failed as well"
        if to_truncate:
            return "an earlier restart has reset these environments"
        if self.log.states is None:
            return self.log.disabled or "their states were not saved yet"
        return ""

    def resume_command(self, then: Command | None) -> Command:
        """Return the command by which a new worker resumes and then runs ``then``."""
        self._tried = True
        log = self.log
        return "resume", (log.states, log.steps(), log.results(), packed_registry(), then)

    def end_recovery(self) -> None:
        self.resumes_next = self._tried = False
