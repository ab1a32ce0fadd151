"""The pending call of an ``AsyncVectorEnv``, with Gymnasium's errors and messages."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from xuance_envs.compat.stepping import WorkerStepper, original_error
from xuance_envs.errors import EnvError

_T = TypeVar("_T")


class PendingCall:
    """State of a stepper between a call's ``_async`` and ``_wait``."""

    def __init__(self, stepper: WorkerStepper) -> None:
        self._stepper = stepper
        self.state = AsyncState.DEFAULT
        self._late: Callable[[], Any] | None = None  # finishes the call that timed out

    def check_none(self, what: str) -> None:
        if self.state is not AsyncState.DEFAULT:
            pending = str(self.state.value)
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{pending}` to complete.",
                pending,
            )

    def finish(self, state: AsyncState, finish: Callable[[], _T], timeout: float | None) -> _T:
        """Wait for the pending call, which must be of the given kind."""
        if self.state is not state:
            raise NoAsyncCallError(
                f"Calling `{state.value}_wait` without any prior call to `{state.value}_async`.",
                state.value,
            )
        if timeout is not None and not self._stepper.ready(timeout):
            self._late, self.state = finish, AsyncState.DEFAULT
            raise multiprocessing.TimeoutError(
                f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
            )
        result = self.report(finish)
        self.state = AsyncState.DEFAULT
        return result

    def finish_late(self) -> None:
        """Finish a call that timed out, or a step that an interrupt left pending."""
        late = self._stepper.finish_step if self._stepper.waiting else self._late
        if late is not None:
            self.report(late)
            self._late = None

    def report(self, finish: Callable[[], _T]) -> _T:
        """Wait for the call. After an error, log it in Gymnasium's format and raise its cause."""
        try:
            return finish()
        except Exception as error:
            self.state, self._late = AsyncState.DEFAULT, None
            if not isinstance(error, EnvError):
                raise
            failure = error
        logger.error(
            f"Received the following error from Worker-{failure.env_index} - Shutting it down"
        )
        logger.error("%s", failure.env_traceback)
        logger.error("Raising the last exception back to the main process.")
        raise original_error(failure)
