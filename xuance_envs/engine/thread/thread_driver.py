"""Driver of a group in a thread of this process.

Each thread waits for its doorbell. Ringing twice is harmless, because the thread compares the
request that it finds with the last one. So an interrupt may arrive between any two bytecodes.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import (
    LATE_TOLERANCE,
    SUSPENSION_THRESHOLD,
    WorkerDriver,
    display_name,
)
from xuance_envs.engine.driver import ObjectDriver
from xuance_envs.engine.group.host import GroupHost
from xuance_envs.engine.group.outcome import STARTUP_COMMANDS
from xuance_envs.engine.group.step_clock import NO_ACTIVE_ENV, StepTimes
from xuance_envs.engine.serialization import describe_error
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.doorbell import Doorbell
from xuance_envs.engine.thread.wake_ups import LONGEST_WAIT, WakeUps
from xuance_envs.errors import VecEnvError, WorkerTimeoutError

POLL_INTERVAL = 0.1  # seconds between two checks of a deadline

Timeouts = tuple[float | None, float | None]  # of steps and other commands, and of the start
_Request = tuple[int, str, Sequence[Any]]  # tag, command and arguments; compared by identity
_NO_REQUEST: _Request = (0, "start", ())
END = "end"  # request to call the arguments, which are functions, and to end the thread


class Deadline:
    """Time limit of a reply; it does not run out while this process is suspended."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.at = monotonic() + limit
        self._was_late = False

    def has_passed(self, began: float) -> bool:
        """Return whether a wait since ``began`` proves a hang."""
        now = monotonic()
        if now < self.at:
            return False
        late = began > self.at + LATE_TOLERANCE and not self._was_late
        if late or now > began + POLL_INTERVAL + SUSPENSION_THRESHOLD:
            self._was_late, self.at = True, now + self.limit
            return False
        return True


class ThreadDriver(ObjectDriver, WorkerDriver):
    """Driver of a group whose environments are made, stepped and closed in one thread."""

    def __init__(self, lo: int, hi: int, timeouts: Timeouts, wake_ups: WakeUps) -> None:
        super().__init__(lo, hi)
        self.group = lo  # in WakeUps.busy; later its index
        self.spin = 0.0
        self.failed = False
        self._timeouts = timeouts
        self._wake_ups = wake_ups
        self._deadline: Deadline | None = None
        self._doorbell = Doorbell()
        self._request = _NO_REQUEST
        self._reply: tuple[_Request, Any, Exception | None] = _NO_REQUEST, None, None
        self.host = GroupHost(lambda arrays: arrays, None)
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
        last = _NO_REQUEST
        while True:
            if not self._spin_until(lambda seen=last: self._request is not seen):
                self._doorbell.wait()
            if self._wake_ups.to_wake:
                self._wake_ups.wake_next()
            request = self._request
            if request is last:
                continue
            last = request
            _, command, arguments = request
            if command == END:
                for function in arguments:
                    function()
                return
            value, failure = None, None
            try:
                value = self.host.execute(command, arguments)
            except BaseException as error:
                failure = as_exception(command, error)
            self._answer(request, value, failure)
            # While the thread waits, its frame must not keep arguments and results alive.
            del request, arguments, value, failure

    def _answer(self, request: _Request, value: Any, failure: Exception | None) -> None:
        # In this order: after the reply, the main thread may submit another request.
        self._wake_ups.busy.pop(self.group, None)
        self._reply = request, value, failure
        self._wake_ups.report(failure is not None)

    # -- in the main thread -----------------------------------------------------------

    @property
    @override
    def tag(self) -> int:
        return self._request[0]

    @property
    @override
    def reply_deadline(self) -> float | None:
        return None if self._deadline is None else self._deadline.at

    @override
    def submit_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        self._submit((tag, "step", (actions, tag)))

    @override
    def submit(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        self._submit((tag, *packed))

    def _submit(self, request: _Request) -> None:
        limit = self._timeouts[request[1] in STARTUP_COMMANDS]
        self._deadline = None if limit is None else Deadline(limit)
        self._announce()
        # No call in between, so an interrupt cannot come halfway.
        self._wake_ups.busy[self.group] = None
        self._request = request

    def _announce(self) -> None:
        self._wake_ups.submitted.append(self._doorbell)

    def ring(self) -> None:
        self._doorbell.ring()

    @override
    def result(self, deadline: float | None = None) -> Any:
        request = self._request
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
        self._wake_ups.wake_all()
        if self._spin_until(lambda: self._reply[0] is request):
            return
        while self._reply[0] is not request:
            began, own = monotonic(), self._deadline
            ends = [end for end in (None if own is None else own.at, deadline) if end is not None]
            longest = min(POLL_INTERVAL, max(0.0, min(ends) - began)) if ends else LONGEST_WAIT
            if self._wake_ups.wait_for_reply(longest) or self._reply[0] is request:
                continue
            if own is not None and own.has_passed(began):
                raise self._timeout_error()
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError

    def _timeout_error(self) -> WorkerTimeoutError:
        self.failed = True
        assert self._deadline is not None
        running, details = self._active_env(), self._hang_details()
        envs, command = range(self.lo, self.hi), display_name(self._request[1])
        return WorkerTimeoutError(envs, None, self._deadline.limit, command, details, running)

    def _hang_details(self) -> str:
        text = "A thread cannot be killed: it continues until its environment returns. Its stack:\n"
        frame = sys._current_frames().get(self.thread.ident or 0)
        return text if frame is None else text + "".join(traceback.format_stack(frame))

    def _active_env(self) -> int | None:
        active = self.host.progress.at[0]
        return self.env_at(None if active == NO_ACTIVE_ENV else active - 1, self._request[1])

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self.host.group.clock.memory)

    def end(self, *functions: Callable[[], Any]) -> None:
        """Call functions in the thread after its current request, and end the thread."""
        self._request = 0, END, functions
        self._reply = self._request, None, None
        self.ring()

    def join(self, deadline: float) -> bool:
        """Wait until the thread ends; return False if it still runs at the deadline."""
        if self.thread.ident is None or self.thread is threading.current_thread():
            return True
        self.thread.join(max(0.0, deadline - monotonic()))
        return not self.thread.is_alive()

    # -- in either --------------------------------------------------------------------

    def _spin_until(self, condition: Callable[..., bool]) -> bool:
        """Spin for a while; return whether the condition became true."""
        end = perf_counter() + self.spin
        while perf_counter() < end:
            if condition():
                return True
            system.yield_cpu()
        return False


def as_exception(command: str, error: BaseException) -> Exception:
    """Return an exception that does not look like an interrupt of the main thread."""
    if isinstance(error, Exception):
        return error
    failure = VecEnvError(f"{command}: {describe_error(error)}")
    failure.__cause__ = error
    return failure
