"""A worker process that is replaced when it is lost, by one that goes on where it was.

Now and then the states of its environments are saved, and the actions since then are kept, here
where the worker cannot reach them. Another process is given both: it loads the states, repeats the
steps, sees that they come to what was last known, and does the step that was lost. Where they do
not, or where it is lost as well, the episodes are truncated as by
:class:`~xuance_envs.engine.restarts.RestartingDriver`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xuance_envs.engine.failure_files import FailureFiles
from xuance_envs.engine.group.outcome import WithStates
from xuance_envs.engine.group.states import DIFFERENT, checksum
from xuance_envs.engine.restarts import READY, Loss, RestartingDriver
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import EnvError, StateError, WorkerDiedError, name_envs
from xuance_envs.state.handlers import registered

__all__ = ["ResumingDriver"]

SHARE = 0.01
"""What saving may cost, as a share of stepping."""

MOST_STEPS = 2000
MOST_BYTES = 1 << 26
"""So many steps, and about so many bytes of actions, are kept at most."""

_CHANGING = ("reset", "call", "set_attr", "apply", "load_states")
"""The commands after which the states are saved anew."""


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
        self._has_nan = False
        self._before: tuple[Any, list[Any]] | None = None
        self._can_save = not self._arrays.actions.objects
        # The states that were saved last; by the number of its request, the actions of each step
        # since; after how many of these states are saved again.
        self._states: Any = None
        self._since: dict[int, list[Any]] = {}
        self._period = 1
        self._cost, self._duration = 0.0, 0.0
        # Of what is asked now: whether states are saved after it, and a step's actions.
        self._saves = False
        self._actions: list[Any] | None = None
        # Whether a successor is to resume, and whether one has been asked to.
        self._resumes = self._has_tried = False

    def ask_step(self, tag: int, actions: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        known = self._can_save and actions is None
        self._actions = [part.copy() for part in self._arrays.actions.parts] if known else None
        self._saves = known and (self._states is None or len(self._since) + 1 >= self._period)
        super().ask_step(tag, actions)

    def ask(self, tag: int, packed: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        (command, _), _ = packed
        self._saves, self._actions = self._can_save and command in _CHANGING, None
        super().ask(tag, packed)

    def _ask_worker(self) -> None:
        if not self._saves or self._owed:
            super()._ask_worker()
            return
        command, arguments = self._asked
        _, packed = self._worker.pack("with_states", command, arguments, _registry())
        self._worker.ask(self.tag, (command, packed))  # by the name that errors have for it

    def _made_ready(self, result: Any) -> None:
        self._check(result)
        self._resumes = self._has_tried = False

    def _take(self, result: Any) -> None:
        self._check(result)
        if isinstance(result, WithStates):
            if self._files is not None:
                self._before = self._states, list(self._since.values())
            self._states, self._since = result.states, {}
            if result.states is None:
                self._can_save = False
            elif self._asked[0] == "step":
                self._plan(result)
            result = result.result
        elif self._asked[0] == "step" and self._actions is not None and not self._owed:
            if self._states is not None:
                self._since[self.tag] = self._actions
        elif self._asked[0] in ("step", *_CHANGING):
            self._states, self._since = None, {}
        self._resumes = self._has_tried = False
        super()._take(result)
        if self._files is not None and self._asked[0] == "step" and not self._has_nan:
            self._look_for_nan()

    def _look_for_nan(self) -> None:
        """Records the first NaN in a reward or an observation."""
        parts = [self._arrays.rewards, *self._arrays.observations.parts]
        numbers = [p for p in parts if isinstance(p, np.ndarray) and p.dtype.kind == "f"]
        if any([np.isnan(part.max(initial=0)) for part in numbers]):
            self._has_nan = True
            found = [
                self.lo + place
                for place in range(self.hi - self.lo)
                if any(np.isnan(part[place]).any() for part in numbers)
            ]
            self._record(f"a NaN in the observation or the reward of {name_envs(found)}")

    def _raised(self, error: EnvError) -> None:
        if not isinstance(error, StateError) and error.command in ("step", "reset"):
            self._record(str(error))

    def _record(self, what: str) -> None:
        if self._files is None or self._asked[0] != "step" or self._has_tried:
            return
        steps = [actions for tag, actions in self._since.items() if tag != self.tag]
        states = self._states
        if self._saves and states is not None and not self._since:
            states, steps = self._before or (None, [])
        if self._actions is not None:
            steps.append(self._actions)
        self._files.write(states, steps, what)

    def _plan(self, saved: WithStates) -> None:
        """Chooses after how many steps states are saved again."""
        weight = 0.5 if self._duration else 1.0
        self._cost += weight * (saved.cost - self._cost)
        self._duration += weight * (saved.step - self._duration)
        wanted = math.ceil(self._cost / (SHARE * max(self._duration, 1e-9)))
        size = sum(part.nbytes for part in self._arrays.actions.parts)
        self._period = max(1, min(wanted, MOST_STEPS, MOST_BYTES // max(size, 1)))

    # -- when it is lost --------------------------------------------------------------

    def _lose(self, error: Loss) -> None:
        if not isinstance(error, EnvError):
            self._record(str(error))
        super()._lose(error)

    def _loses_nothing(self) -> bool:
        if not self._restarts.resumes:
            self._states, self._since = None, {}
            return False
        self._resumes = self._states is not None and not (self._has_tried or self._owed)
        if not self._resumes:
            self._states, self._since = None, {}
        return self._resumes

    def _replace(self) -> None:
        if not self._resumes:
            super()._replace()
            return
        command, arguments = self._asked
        then = (command, arguments) if command in ("step", "reset") else None
        steps = [actions for tag, actions in self._since.items() if tag != self.tag]
        seen = checksum(self._last_known.shown())
        resume = "resume", (self._states, steps, seen, _registry(), then)
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


def _registry() -> bytes | None:
    known = registered()
    return dumps_for_worker(known) if known else None
