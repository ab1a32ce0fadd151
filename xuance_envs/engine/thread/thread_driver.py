"""Driver of a group in a thread of this process.

Two locks per thread serve as doorbells: one announces a request, the other one a reply. A doorbell
rings by ``release``. Ringing twice is harmless, because both sides compare the request that they
find with the last one. An interrupt may therefore arrive between any two bytecodes.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.backend import STARTUP_COMMANDS, WorkerDriver, display_name
from xuance_envs.engine.data.reward_rows import first_unstepped
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import GroupHost
from xuance_envs.engine.group.outcome import STATE_COMMANDS
from xuance_envs.engine.group.progress_record import NO_ACTIVE_ENV, ProgressRecord
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes
from xuance_envs.engine.serialization import copy_of, describe_error
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.doorbell import Doorbell
from xuance_envs.errors import VecEnvError, WorkerDiedError, WorkerTimeoutError

logger = logging.getLogger("xuance_envs")

POLL_INTERVAL = 0.1
"""Seconds between two checks of a deadline."""

LONGEST_WAIT = -1.0 if system.LOCK_WAITS_ARE_INTERRUPTIBLE else 0.1
"""Longest wait for a lock in seconds; limited on Windows, where Ctrl-C does not interrupt it."""

SUSPENSION_THRESHOLD = 1.0
"""Delay of a check, in seconds, above which this process must have been suspended."""

LATE_TOLERANCE = 0.05
"""A check that begins more than this many seconds after a deadline does not prove a hang."""

_Request = tuple[int, str, Sequence[Any]]
"""Tag, command and arguments; compared by identity."""

_NO_REQUEST: _Request = (0, "start", ())

_STOP = "stop"
_LEAVE = "leave"
"""Request to run a function, if there is one, and to end the thread without closing."""


class Deadline:
    """Time limit of a reply; it does not run out while this process is suspended."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.at = None if limit is None else monotonic() + limit
        self._was_late = False

    def has_passed(self, began: float) -> bool:
        """Return whether a wait since ``began`` proves a hang."""
        now = monotonic()
        if self.at is None or self.limit is None or now < self.at:
            return False
        suspended = now > began + POLL_INTERVAL + SUSPENSION_THRESHOLD
        late = began > self.at + LATE_TOLERANCE and not self._was_late
        if not (suspended or late):
            return True
        self._was_late = True
        self.at = now + self.limit
        return False


NO_DEADLINE = Deadline(None)


class ThreadDriver(WorkerDriver):
    """Driver of a group whose environments are made, stepped and closed in one thread."""

    shares_objects = True

    def __init__(
        self,
        lo: int,
        hi: int,
        step_timeout: float | None,
        start_timeout: float | None,
    ) -> None:
        super().__init__(lo, hi)
        self.spin = 0.0
        self.failed = False
        self._timeouts = step_timeout, start_timeout
        self.on_reply: Callable[[], None] = lambda: None
        """Called in the thread after each reply."""
        self.stopping = False
        self._deadline = NO_DEADLINE
        self._active_env = [NO_ACTIVE_ENV]
        self._times = bytearray(TIMES_BYTES)
        self._rewards: NDArray[np.float64] | None = None  # to find the environment that is running
        self._requested, self._replied = Doorbell(), Doorbell()
        self._request: _Request = _NO_REQUEST
        self._rung: _Request = self._request
        self._reply: tuple[_Request, Any, Exception | None] = (self._request, None, None)
        recorder = ProgressRecord(self._active_env, memoryview(self._times))
        self.host = GroupHost(lambda arrays: arrays, None, recorder)
        name = f"xuance_envs-{lo}-{hi - 1}"
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        try:
            self.thread.start()
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}: {threading.active_count()} threads are running. Raise the limit "
                "(ulimit -u), or use fewer threads with a larger in_series"
            ) from error

    # -- in the thread ----------------------------------------------------------------

    def _serve(self) -> None:
        last: _Request = _NO_REQUEST
        while True:
            self._wait_for_ring(last)
            request = self._request
            if request is last:
                continue
            last = request
            _, command, arguments = request
            if command == _STOP:
                break
            if command == _LEAVE:
                for function in arguments:
                    function()
                return
            value, failure = None, None
            try:
                value = self.host.execute(command, arguments)
            except BaseException as error:
                failure = as_exception(command, error)
            self._answer(request, value, failure)
            # No variable of this frame refers to a request while the thread waits.
            del request, arguments, value, failure
        self.host.close()

    def take_over(self, other: ThreadDriver) -> None:
        """Serve the group of another driver whose thread no longer uses it."""
        self.host, self._active_env, self._times = other.host, other._active_env, other._times
        self._answer(self._request, self.host.group.describe(), None)

    def _answer(self, request: _Request, value: Any, failure: Exception | None) -> None:
        self._reply = request, value, failure
        self._replied.ring()
        self.on_reply()

    def _wait_for_ring(self, last: _Request) -> None:
        if self.spin:
            end = perf_counter() + self.spin
            while perf_counter() < end:
                if self._request is not last:
                    return
                system.yield_cpu()
        self._requested.wait()

    # -- in the main thread -----------------------------------------------------------

    @property
    @override
    def tag(self) -> int:
        return self._request[0]

    @property
    @override
    def alive(self) -> bool:
        return self.thread.is_alive()

    @property
    @override
    def reply_deadline(self) -> float | None:
        return self._deadline.at

    @override
    def attach(self, arrays: StepArrays) -> None:
        self._rewards = arrays.rewards

    @override
    def pack_actions(self, actions: list[list[Any]]) -> list[list[Any]]:
        return [list(map(copy_of, values)) for values in actions]  # environments may modify them

    @override
    def pack(self, command: str, *arguments: Any) -> tuple[str, Sequence[Any]]:
        if command in STATE_COMMANDS or command in STARTUP_COMMANDS:  # never shared
            return command, arguments
        return command, copy_of(arguments)

    @override
    def submit_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        self._submit((tag, "step", (actions, tag)))

    @override
    def submit(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        self._submit((tag, *packed))

    def _submit(self, request: _Request) -> None:
        limit = self._timeouts[request[1] in STARTUP_COMMANDS]
        self._deadline = NO_DEADLINE if limit is None else Deadline(limit)
        self._request = request
        self._ring()
        self._rung = request

    def _ring(self) -> None:
        self._requested.ring()

    @override
    def result(self, deadline: float | None = None) -> Any:
        request = self._request
        if self._rung is not request:  # interrupted before the doorbell rang
            self._ring()
        if self._reply[0] is not request:
            self._wait_for_reply(request, deadline)
        _, value, error = self._reply
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _wait_for_reply(self, request: _Request, deadline: float | None) -> None:
        end = perf_counter() + self.spin
        while self.spin and perf_counter() < end:
            if self._reply[0] is request:
                return
            system.yield_cpu()
        while self._reply[0] is not request:
            began = monotonic()
            longest = LONGEST_WAIT
            limits = [limit for limit in (self._deadline.at, deadline) if limit is not None]
            if limits:
                longest = min(POLL_INTERVAL, max(0.0, min(limits) - began))
            if self._replied.wait(timeout=longest):
                continue
            if self._reply[0] is not request:
                if self._deadline.has_passed(began):
                    raise self._timeout_error()
                if deadline is not None and monotonic() >= deadline:
                    raise TimeoutError

    def _timeout_error(self) -> WorkerTimeoutError:
        self.failed = True
        limit = self._deadline.limit
        assert limit is not None
        running, details = self._running_env(), self._hang_details()
        envs, command = range(self.lo, self.hi), display_name(self._request[1])
        return WorkerTimeoutError(envs, None, limit, command, details, running)

    def _hang_details(self) -> str:
        text = "A thread cannot be killed: it continues until its environment returns. Its stack:\n"
        frame = sys._current_frames().get(self.thread.ident or 0)
        return text if frame is None else text + "".join(traceback.format_stack(frame))

    def _running_env(self) -> int | None:
        place = self._active_env[0] - 1 if self._active_env[0] != NO_ACTIVE_ENV else None
        if place is None and self._request[1] == "step" and self._rewards is not None:
            place = first_unstepped(self._rewards)
        return None if place is None else self.lo + place

    @override
    def death_error(self) -> WorkerDiedError:
        command = display_name(self._request[1])
        return WorkerDiedError(range(self.lo, self.hi), None, None, command)

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self._times)

    def request_stop(self) -> None:
        """After the current request, close the environments in their thread and end the thread."""
        self.stopping = True
        self._request = 0, _STOP, ()
        self._reply = self._request, None, None
        self._ring()

    def leave(self, *functions: Callable[[], Any]) -> None:
        """Call functions in the thread and end it, without closing the environments."""
        self._request = 0, _LEAVE, functions
        self._ring()

    def join(self, deadline: float) -> bool:
        """Wait until the thread ends; return False if it still runs at the deadline."""
        if self.thread.ident is None or self.thread is threading.current_thread():
            return True
        self.thread.join(max(0.0, deadline - monotonic()))
        return not self.thread.is_alive()


def as_exception(command: str, error: BaseException) -> Exception:
    """Return an exception that does not look like an interrupt of the main thread."""
    if isinstance(error, Exception):
        return error
    failure = VecEnvError(f"{command}: {describe_error(error)}")
    failure.__cause__ = error
    return failure
