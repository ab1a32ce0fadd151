"""Vector environments whose steps are taken in parts, for interfaces that put them together anew.

What :class:`~xuance_envs.vector_envs.vector_env.VecEnv` returns is one way of showing a step. These
classes start groups, wait for them and check states with its code, and leave what came of a step
where the groups put it: in the arrays, and in columns of infos.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.env_group import Autoreset
from xuance_envs.engine.infos import InfoBatch
from xuance_envs.engine.process_end import end_all
from xuance_envs.engine.single_env import EnvDescription
from xuance_envs.engine.space_layout import BadValueError
from xuance_envs.engine.step_arrays import StepArrays
from xuance_envs.errors import EnvError
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = [
    "ProcessStepper",
    "SerialStepper",
    "Stepped",
    "Stepper",
    "original_of",
    "originally",
]


class Stepped:
    """What came of a step besides the arrays.

    Attributes:
        infos: the step's infos, of all environments.
        envs: the environments whose episode ended and that were reset in the same step, None if
            none was.
        reset_infos: the infos of those resets.
    """

    __slots__ = ("envs", "infos", "reset_infos")

    def __init__(
        self, infos: InfoBatch, envs: NDArray[np.intp] | None, reset_infos: InfoBatch | None
    ) -> None:
        self.infos = infos
        self.envs = envs
        self.reset_infos = reset_infos


def _first_of(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """Environment 0's: each library has checks of its own for the others."""
    return described[0][1]


class Stepper(VecEnv):
    """A vector environment whose commands are started, and finished, in separate calls."""

    _common_description = staticmethod(_first_of)

    @property
    def arrays(self) -> StepArrays:
        """The arrays of all environments, as the groups left them."""
        return self._arrays

    def check_process(self) -> None:
        """Raises a WrongProcessError in a process forked from the one it belongs to."""
        if self._elsewhere is not None:
            self._elsewhere.refuse()

    def start_step(self, actions: Any) -> None:
        """Starts a step; rows of another shape than an action's go to the environments as they are.

        So do numbers for actions that have no axes. Gymnasium and Stable-Baselines3 hand on
        whatever rows they get.

        Raises:
            ValueError: the actions do not fit.
        """
        self._packed_actions = None
        rows = self._rows_to_hand_on(actions) if self._takes_numbers else None
        if rows is None:
            try:
                self.step_async(actions)
                return
            except ValueError:
                rows = self._rows_to_hand_on(actions)
                if rows is None:
                    raise
        self._check_idle("step_async")
        self._packed_actions = {
            driver: driver.pack_actions([rows[driver.lo : driver.hi]]) for driver in self._drivers
        }
        self._start_every_step()

    @cached_property
    def _takes_numbers(self) -> bool:
        return isinstance(self.action_space, spaces.Box) and not self.action_space.shape

    def _rows_to_hand_on(self, actions: Any) -> list[Any] | None:
        """A row for each environment, if nothing but their shape can be wrong."""
        flat = self._arrays.actions.flat
        if flat is None or self._check_actions:
            return None
        try:
            given = np.asarray(actions)
        except ValueError:  # of several shapes
            return None
        if given.dtype.kind not in "biuf" or given.shape[:1] != flat.shape[:1]:
            return None
        if given.shape == flat.shape and not self._takes_numbers:
            return None  # their values are what does not fit
        return list(actions)

    def finish_step(self) -> Stepped:
        """Waits for the step that was started with ``step_async``.

        Raises:
            EnvError: an environment raised.
            WorkerDiedError: a worker ended.
        """
        infos, ends = self._results.infos(self._finish_step()).parts
        self.waiting = False
        if ends is None:
            return Stepped(infos, None, None)
        return Stepped(infos, *ends.taken())

    def start_reset(
        self, ids: Sequence[int], seeds: Sequence[int | None], options: Sequence[Any]
    ) -> None:
        """Starts to reset some environments, each with its seed and options.

        A step or command that is pending is waited for first, and its result thrown away.
        """
        self._check_open()
        if self.waiting:
            self.finish_step()
        asks = self._packed_resets(ids, seeds, options)
        self._asked: Collection[int] = {k for k, _ in asks}
        self._start(asks)

    def finish_reset(self) -> InfoBatch:
        """Waits for the reset that was started; the infos of all environments, old ones too.

        Raises:
            EnvError: an environment raised.
            WorkerDiedError: a worker ended.
        """
        try:
            outcomes = self._finish(self._asked)
        except Exception:
            self._fail()
            raise
        infos, _ = self._results.infos(outcomes).parts
        self._unfinished = []
        return infos

    def start_apply(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Starts to call ``function(env, *arguments)``, with arguments for each environment."""
        self._check_idle("call")
        asks = [
            (k, d.pack("apply", range(d.hi - d.lo), function, arguments[d.lo : d.hi]))
            for k, d in enumerate(self._drivers)
        ]
        self._asked = range(len(self._drivers))
        self._start(asks)

    def finish_apply(self) -> tuple[Any, ...]:
        """Waits for the calls that were started; what each returned."""
        answers = self._finish(self._asked)
        self._unfinished = []
        return tuple(value for _, values in answers for value in values)

    def apply(self, ids: Sequence[int], function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``function(env, *args)`` for some environments, in their order."""
        self._check_idle("call")
        every = list(dict.fromkeys(ids))
        results = self._each("apply", every, lambda envs: (function, [args] * len(envs)))
        result_of = dict(zip(every, results, strict=True))
        return [result_of[env] for env in ids]

    def ready(self, timeout: float) -> bool:
        """Waits until what was started is finished, or so many seconds; tells which it was."""
        deadline = monotonic() + timeout
        asked = range(len(self._drivers)) if self.waiting else self._asked
        for k in asked:
            try:
                self._drivers[k].result(deadline)
            except TimeoutError:
                return False
            except Exception:
                continue  # is raised when it is finished
        return True


class SerialStepper(Stepper, DummyVecEnv):
    """Environments in this process.

    An error in a step or reset leaves it usable, as a loop over environments would be.

    Args:
        env_fns: callables that make one environment each.
        autoreset: when an environment whose episode ended is reset.
    """

    def __init__(self, env_fns: Iterable[Callable[..., Any]], autoreset: Autoreset) -> None:
        self._autoreset = autoreset
        super().__init__(env_fns)

    def _fail(self) -> None:
        self.waiting = False


class ProcessStepper(Stepper, SubprocVecEnv):
    """Environments in worker processes.

    Args:
        env_fns: callables that make one environment each.
        autoreset: when an environment whose episode ended is reset.
        **options: as :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv` takes them.
    """

    def __init__(
        self, env_fns: Iterable[Callable[..., Any]], autoreset: Autoreset, **options: Any
    ) -> None:
        self._autoreset = autoreset
        super().__init__(env_fns, **options)

    @property
    def processes(self) -> list[Any]:
        """The worker processes, none once closed."""
        return [worker.process for worker in self._workers.processes]

    def terminate(self) -> None:
        """Closes without waiting for what the workers are doing."""
        if not self.closed:
            self.closed = True
            self.waiting = False
            end_all(self._workers.processes, patience=0.0)
            self.close_extras()


def originally(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function, and raises what an environment raised as if nothing were between."""
    try:
        return function(*args)
    except EnvError as error:
        failure = error
    raise original_of(failure)


def original_of(error: EnvError) -> BaseException:
    """What to raise for an error where environments' own exceptions are expected."""
    if isinstance(error.__cause__, BadValueError):
        return ValueError(str(error))
    return error if error.__cause__ is None else error.__cause__
