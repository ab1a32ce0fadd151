"""Gymnasium's ``AsyncVectorEnv`` over this package's workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space

from xuance_envs._override import Unpack
from xuance_envs.compat import env_functions
from xuance_envs.compat.gymnasium_interface import (
    AUTORESET,
    GymnasiumResults,
    ObservationMode,
    StepResult,
    as_batch,
    check_max_concurrency,
    check_observation_mode,
    checked_spaces,
    parse_reset,
    worker_settings,
)
from xuance_envs.compat.gymnasium_sync import SyncVectorEnv
from xuance_envs.compat.stepping import Stepper, make_stepper, original_error, raise_original
from xuance_envs.engine.group.base_env_group import AttributeSetter
from xuance_envs.engine.group.single_env import spaces_of
from xuance_envs.errors import EnvError, caller_stacklevel
from xuance_envs.vector_envs.options import (
    SPLIT_OPTIONS,
    InSeries,
    ProcessOptions,
    VectorContext,
)
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

_T = TypeVar("_T")


@with_options(ProcessOptions, SyncVectorEnv, SubprocVecEnv)
class AsyncVectorEnv(GymnasiumResults, gymnasium.vector.AsyncVectorEnv):
    """Environments in worker processes, in place of :class:`gymnasium.vector.AsyncVectorEnv`.

    Gymnasium starts one process per environment. Here each worker steps several environments, and
    there is one worker per CPU by default.

    As in Gymnasium, methods raise ``AlreadyPendingCallError`` while another call is pending and
    ``ClosedEnvironmentError`` after ``close``. The ``_wait`` methods raise ``NoAsyncCallError``
    if their call is not pending, and ``multiprocessing.TimeoutError`` after ``timeout`` seconds.

    Args:
        shared_memory: True to raise Gymnasium's error for spaces that Gymnasium cannot put into
            shared memory. The argument has no other effect unless ``worker`` is given.
        context: start method of the workers: ``"spawn"``, ``"forkserver"`` or ``"fork"``. None
            selects Python's default, or ``"spawn"`` if the default is ``"fork"`` and forking is
            unsafe. ``"thread"`` selects threads, as in
            :class:`~xuance_envs.vector_envs.thread_vec_env.ThreadVecEnv`.
        daemon: no effect unless ``worker`` is given. Without ``worker``, environments can start
            processes of their own even with True.
        worker: replacement for Gymnasium's worker function. It selects Gymnasium's own
            implementation, with one process per environment, and without this class's speedup.
        max_concurrency: maximum number of workers, and so of environments that step at the same
            time.
        **options: further arguments of
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`.

    Raises:
        RuntimeError: the environments' spaces are not compatible.
        ValueError: ``observation_mode`` or ``autoreset_mode`` is invalid, ``env_fns`` is empty,
            rewards are vectors, an option is out of range, or a space is custom and
            ``shared_memory`` is True.
        TypeError: a space has a variable shape and ``shared_memory`` is True, an option is unknown,
            or options cannot be combined.

    Example:
        >>> import gymnasium
        >>> from xuance_envs.compat.gymnasium import AsyncVectorEnv
        >>> envs = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, in_series=2)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> observations.shape, rewards
        ((3, 4), array([1., 1., 1.]))
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], gymnasium.Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: VectorContext | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        in_series: InSeries = "auto",
        **options: Unpack[ProcessOptions],
    ) -> None:
        self._stepper = None  # with a custom worker
        functions = list(env_fns)
        given = [*options, *(["in_series"] if in_series != "auto" else [])]
        if worker is not None:
            if given:
                raise TypeError(
                    "worker: a custom worker selects Gymnasium's implementation, which does not "
                    f"accept {', '.join(given)}"
                )
            modes: Any = observation_mode, autoreset_mode  # checked by Gymnasium
            # Before 1.4, Gymnasium does not accept the argument.
            limit: Any = {} if max_concurrency is None else {"max_concurrency": max_concurrency}
            super().__init__(
                functions, shared_memory, copy, context, daemon, worker, *modes, **limit
            )
            return
        if max_concurrency is not None:
            check_max_concurrency(max_concurrency)
            if both := [name for name in SPLIT_OPTIONS if name in given]:
                raise TypeError(
                    f"max_concurrency cannot be combined with {', '.join(both)}: both set the "
                    "number of workers"
                )
            in_series = -(-len(functions) // int(max_concurrency))
        check_observation_mode(observation_mode)
        self.env_fns = functions
        self.shared_memory = shared_memory
        self.copy = copy
        self.context = context
        self.daemon = daemon
        self.worker = None
        self.observation_mode = observation_mode  # type: ignore[assignment]  # narrower in Gymnasium
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.max_concurrency = max_concurrency
        self.num_envs = len(functions)
        prepared = env_functions.registering(functions)
        settings = worker_settings(context, in_series, options)
        autoreset = AUTORESET[self.autoreset_mode]
        stepper: Stepper = raise_original(make_stepper, prepared, autoreset, settings)
        try:
            description = stepper.description
            self.metadata = {**description.metadata, "autoreset_mode": self.autoreset_mode}
            self.render_mode = description.render_mode
            self.single_action_space = description.action_space
            self.action_space = batch_space(description.action_space, self.num_envs)
            spaces = stepper.apply(range(self.num_envs), spaces_of)
            checked = checked_spaces(observation_mode, spaces, shared_memory)
            self.single_observation_space, self.observation_space = checked
        except BaseException:
            stepper.close()
            raise
        self._stepper = stepper
        self._envs_reset = np.arange(self.num_envs)
        self._call_state = AsyncState.DEFAULT
        self._late: Callable[[], Any] | None = None  # finishes the call that timed out

    # -- reset ------------------------------------------------------------------------

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Start a reset, with the arguments and errors of ``SyncVectorEnv.reset``."""
        if self._stepper is None:
            return super().reset_async(seed, options)  # type: ignore[arg-type]  # narrower there
        self._assert_is_running()
        envs, seeds, options = parse_reset(self.num_envs, seed, options, self._check_no_call)
        self._finish_late()
        self._stepper.start_reset(envs.tolist(), seeds, [options] * len(envs))
        self._envs_reset = envs
        self._call_state = AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Finish the reset; return results in the form of ``SyncVectorEnv.reset``."""
        if self._stepper is None:
            return super().reset_wait(timeout)
        infos = self._finish(AsyncState.WAITING_RESET, self._stepper.finish_reset, timeout)
        return self._reset_result(infos, self._envs_reset)

    # -- step -------------------------------------------------------------------------

    def step_async(self, actions: Any) -> None:
        """Start a step with a batch of actions from ``action_space``."""
        stepper = self._stepper
        if stepper is None:
            return super().step_async(actions)
        self._assert_is_running()
        if self._call_state is not AsyncState.DEFAULT or stepper.groups.ledger.pending:
            self._check_no_call("step_async")
            self._finish_late()
        stepper.start_step(as_batch(self.single_action_space, actions))
        self._call_state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Finish the step; return results in the form of ``SyncVectorEnv.step``."""
        if self._stepper is None:
            return super().step_wait(timeout)
        step = self._finish(AsyncState.WAITING_STEP, self._stepper.finish_step, timeout)
        return self._step_result(step)

    # -- calls ------------------------------------------------------------------------

    def call_async(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Start calling a method, or reading an attribute, of each environment."""
        if self._stepper is None:
            return super().call_async(name, *args, **kwargs)
        self._make_idle("call_async")
        arguments = [(name, args, kwargs)] * self.num_envs
        self._stepper.start_apply(env_functions.call_wrapper_attr, arguments)
        self._call_state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Finish the calls and return a tuple of their results."""
        if self._stepper is None:
            return super().call_wait(timeout)
        return self._finish(AsyncState.WAITING_CALL, self._stepper.finish_apply, timeout)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: one value for all, or a list or tuple of values.

        Raises:
            ValueError: a list or tuple has the wrong length.
        """
        if self._stepper is None:
            return super().set_attr(name, values)
        self._assert_is_running()
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self._check_no_call("set_attr")
        self._finish_late()
        setter = AttributeSetter(env_functions.set_wrapper_attr)
        self._stepper.start_apply(setter, [(name, value) for value in values])
        self._report(self._stepper.finish_apply)

    def _make_idle(self, what: str) -> None:
        if self._stepper is None:
            raise NotImplementedError(
                f"{what} is not available with a custom worker, which uses Gymnasium's "
                "implementation"
            )
        self._assert_is_running()
        self._check_no_call(what)
        self._finish_late()

    # -- the pending call, with Gymnasium's errors and messages -----------------------

    def _check_no_call(self, what: str) -> None:
        if self._call_state is not AsyncState.DEFAULT:
            pending = str(self._call_state.value)
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{pending}` to complete.",
                pending,
            )

    def _finish(self, state: AsyncState, finish: Callable[[], _T], timeout: float | None) -> _T:
        """Wait for the pending call, which must be of the given kind."""
        self._assert_is_running()
        if self._call_state is not state:
            raise NoAsyncCallError(
                f"Calling `{state.value}_wait` without any prior call to `{state.value}_async`.",
                state.value,
            )
        ledger = self._stepper.groups.ledger
        if timeout is not None and not ledger.ready_by(monotonic() + timeout):
            self._late, self._call_state = finish, AsyncState.DEFAULT
            raise multiprocessing.TimeoutError(
                f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
            )
        result = self._report(finish)
        self._call_state = AsyncState.DEFAULT
        return result

    def _finish_late(self) -> None:
        """Finish a call that timed out, or a step that an interrupt left pending."""
        late = self._stepper.finish_step if self._stepper.waiting else self._late
        if late is not None:
            self._report(late)
            self._late = None

    def _report(self, finish: Callable[[], _T]) -> _T:
        """Wait for the call. After an error, log it in Gymnasium's format and raise its cause."""
        try:
            return finish()
        except Exception as error:
            self._call_state, self._late = AsyncState.DEFAULT, None
            if not isinstance(error, EnvError):
                raise
            failure = error
        logger.error(
            f"Received the following error from Worker-{failure.env_index} - Shutting it down"
        )
        logger.error("%s", failure.env_traceback)
        logger.error("Raising the last exception back to the main process.")
        raise original_error(failure)

    # -- closing ----------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments and end the workers.

        Args:
            timeout: maximum seconds to wait for a pending call.
            terminate: True to terminate the workers without waiting.
        """
        stepper = self._stepper
        if stepper is None:
            return super().close_extras(timeout, terminate)
        state = self._call_state
        if state is not AsyncState.DEFAULT and not stepper.groups.closed:
            logger.warn(
                f"Calling `close` while waiting for a pending call to `{state.value}` to complete.",
                stacklevel=caller_stacklevel(),
            )
            try:
                getattr(self, f"{state.value}_wait")(0 if terminate else timeout)
            except multiprocessing.TimeoutError:
                terminate = True
        if terminate:
            stepper.groups.close(close_timeout=0.0)
        else:
            stepper.close()

    @property
    def processes(self) -> list[Any]:
        """The worker processes, by default one per CPU; empty once closed."""
        return self._own_processes if self._stepper is None else self._stepper.processes

    @processes.setter
    def processes(self, processes: list[Any]) -> None:
        self._own_processes = processes
