"""A worker process that is replaced when it is lost, by one that goes on where it was.

Now and then the states of its environments are saved, and the actions since then are kept, here
where the worker cannot reach them. Another process is given both: it loads the states, repeats the
steps, sees that they come to what was last known, and does the step that was lost. Where they do
not, or where it is lost as well, the episodes are truncated as by
:class:`~xuance_envs.engine.restarts.RestartingDriver`.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from xuance_envs.engine.failure_files import FailureFiles
from xuance_envs.engine.group.outcome import WithStates
from xuance_envs.engine.group.states import DIFFERENT, checksum, packed_registry
from xuance_envs.engine.restarts import READY, Loss, RestartingDriver
from xuance_envs.engine.trails import CHANGING, Trail
from xuance_envs.errors import EnvError, StateError, WorkerDiedError

__all__ = ["ResumingDriver"]

_MOST_COST = 4
"""So many times as long as saving states may take what brings them here."""


class ResumingDriver(RestartingDriver):
    """A group of environments in a worker whose loss loses nothing.

    Actions without a fixed shape are not kept: with them, it is as with a restart.

    The arguments are those of :class:`~xuance_envs.engine.restarts.RestartingDriver`.

    Args:
        *arguments: those.
        files: where failures are recorded; None if they are not.
    """

    def __init__(self, *arguments: Any, files: FailureFiles | None = None) -> None:
        super().__init__(*arguments)
        self._files = files
        self._trail = Trail(self._arrays)
        # Of what is asked now: when it was, where states are saved after it; and whether it is a
        # step whose actions are kept, and nothing else.
        self._began = 0.0
        self._is_plain = False
        # What states were followed by before others were saved, and in which step that was.
        self._before: tuple[int, Any, list[Any]] = READY, None, []
        # Whether a successor is to resume, and whether one has been asked to.
        self._resumes = self._has_tried = False

    def ask_step(self, tag: int, actions: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        trail = self._trail
        self._is_plain = tag < trail.until and actions is None
        if self._is_plain:
            trail.note(tag)
            RestartingDriver.ask_step(self, tag, None)  # each step: super() would take as long
        elif actions is not None or self._owed or not trail.is_kept:
            super().ask_step(tag, actions)
        else:
            if trail.states is not None and trail.has_room:
                trail.note(tag)
            self._ask_with_states(tag, ("step", ()))

    def ask(self, tag: int, packed: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        asked, _ = packed
        self._is_plain = False
        if asked[0] in CHANGING and self._trail.is_kept and not self._owed:
            self._ask_with_states(tag, asked)
        else:
            super().ask(tag, packed)

    def _ask_with_states(self, tag: int, asked: tuple[str, Any]) -> None:
        """Asks for a command, and for the states after it."""
        self._began = perf_counter()
        packed = self._worker.pack("with_states", *asked, packed_registry())
        super().ask(tag, (asked, packed._replace(command=asked[0])))  # as errors are to name it

    def _made_ready(self, result: Any) -> None:
        self._check(result)
        self._resumes = self._has_tried = False

    def _take(self, result: Any) -> None:
        if not self._is_plain:
            result = self._taken_in(result)
            self._resumes = self._has_tried = False
        RestartingDriver._take(self, result)
        if self._files is not None and self._asked[0] == "step":
            nan = self._trail.new_nan(self.lo)
            if nan:
                self._record(nan)

    def _taken_in(self, result: Any) -> Any:
        """Begins the trail anew, where this is no step that it goes on with; what it came to."""
        self._check(result)
        trail = self._trail
        if not isinstance(result, WithStates):
            if self._asked[0] in ("step", *CHANGING) and trail.noted != self.tag:
                trail.begin(None)
            return result
        if self._files is not None and self._before[0] != self.tag:
            self._before = self.tag, trail.states, self._steps()
        if result.states is None:
            trail.is_kept = False
        elif self._asked[0] == "step":
            duration = self.times().p50
            trail.plan(self._cost(result, duration), duration, self.tag)
        trail.begin(result.states, self.tag)
        return result.result

    def _cost(self, result: WithStates, duration: float) -> float:
        """Seconds that saving made a step longer: also by what brings the states here.

        Args:
            result: what came of the step.
            duration: seconds that one takes, usually.
        """
        waited = perf_counter() - self._began - duration
        # Most of that may be the caller's, who came late for the answer.
        return max(result.cost, min(waited, _MOST_COST * result.cost))

    def _raised(self, error: EnvError) -> None:
        if not isinstance(error, StateError) and error.command in ("step", "reset"):
            self._record(str(error))

    def _record(self, what: str) -> None:
        if self._files is None or self._asked[0] != "step" or self._has_tried:
            return
        tag, states, steps = self._before
        if tag != self.tag:
            states, steps = self._trail.states, self._steps()
        self._files.write(states, steps, what)

    def _steps(self) -> list[Any]:
        """The actions since states were saved, those of this step with them."""
        return [*self._trail.steps(before=self.tag), self._trail.next_step()]

    # -- when it is lost --------------------------------------------------------------

    def _lose(self, error: Loss) -> None:
        if not isinstance(error, EnvError):
            self._record(str(error))
        super()._lose(error)

    def _loses_nothing(self) -> bool:
        may_resume = self._restarts.resumes and not (self._has_tried or self._owed)
        self._resumes = may_resume and self._trail.states is not None
        self._is_plain = False
        if not self._resumes:
            self._trail.begin(None)
        return self._resumes

    def _replace(self) -> None:
        if not self._resumes:
            super()._replace()
            return
        command, arguments = self._asked
        then = (command, arguments) if command in ("step", "reset") else None
        seen = checksum(self._last_known.shown())
        states, steps = self._trail.states, self._trail.steps(before=self.tag)
        resume = "resume", (states, steps, seen, packed_registry(), then)
        self._has_tried = True
        tag = READY if then is None else self.tag
        watched = sorted(self._watched)
        self._backend.replace(self._index, tag, self._keywords, self._attributes, watched, resume)
        self._to_replace = False

    def _check(self, result: Any) -> None:
        """Sees whether the repetition came to what was known.

        Raises:
            WorkerDiedError: it did not, so that what the worker was in is lost.
        """
        if isinstance(result, str) and result == DIFFERENT:
            raise WorkerDiedError(
                range(self.lo, self.hi),
                None,
                None,
                self._asked[0],
                "another process took its place, but repeating its steps came to something else",
            )
