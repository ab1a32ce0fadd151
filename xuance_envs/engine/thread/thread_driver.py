"""Driver of a group in a thread of this process, and wake-ups between threads.

Each thread waits for its doorbell. Ringing twice is harmless, because the thread compares the
request that it finds with the last one. So an interrupt may arrive between any two bytecodes.

With the GIL, threads that are woken together wait for each other. So the main thread wakes a few
threads, and each of them wakes another one before it steps. The main thread itself is woken after
the last reply or a failure; in ``recv``, after each reply.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import Timeouts, WorkerDriver
from xuance_envs.engine.driver import ObjectDriver
from xuance_envs.engine.group.host import GroupHost
from xuance_envs.engine.group.step_clock import NO_ACTIVE_ENV, StepTimes
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.serialization import as_exception
from xuance_envs.engine.system.doorbell import Doorbell
from xuance_envs.errors import ClosedVecEnvError, WorkerTimeoutError

FIRST_WOKEN = 16  # number of threads that the main thread wakes, with the GIL

# Longest wait in seconds of the main thread for a lock, which Ctrl-C does not interrupt on Windows.
POLL_INTERVAL = 0.1

_Request = tuple[str, Sequence[Any]]  # command and arguments; compared by identity
_NO_REQUEST: _Request = ("start", ())
END = "end"  # request to call the arguments, which are functions, and to end the thread


class WakeUps(Poller):
    def __init__(self) -> None:
        self.submitted: list[Doorbell] = []  # of threads that got a request since the last wake_all
        self.busy: dict[int, None] = {}  # groups with unanswered requests
        self._to_wake: deque[Doorbell] = deque()
        self.all_at_once = False
        self.spin = 0.0  # seconds that threads and the main thread spin before they block
        self.wake_loop: Callable[[], None] = lambda: None
        self._interrupted = False
        self._at_each_reply = False
        self._replied = Doorbell()

    def wake_all(self) -> None:
        """Wake the threads and the event loop to which requests were submitted."""
        if self.submitted:
            all_at_once = self.all_at_once or self._interrupted
            self._interrupted = True  # a thread may be neither awake nor in _to_wake
            self._to_wake.extend(self.submitted)
            self.wake_next(len(self._to_wake) if all_at_once else FIRST_WOKEN)
            self.submitted, self._interrupted = [], False
        self.wake_loop()

    def wait_for_reply(self, *ends: float | None) -> bool:
        """Wait for a reply, at most for ``POLL_INTERVAL`` or until the earliest of ``ends``."""
        now = monotonic()
        until = min(end for end in (now + POLL_INTERVAL, *ends) if end is not None)
        return self._replied.wait(max(0.0, until - now), self.spin)

    @override
    def poll(self, busy: Collection[int]) -> set[int]:
        self.wake_all()
        return set(busy).difference(self.busy.copy())

    @override
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        self._at_each_reply = True
        while not (ready := self.poll(busy)):
            if not self.wait_for_reply(until) and until is not None and monotonic() >= until:
                break
        self._at_each_reply = False
        return ready

    def wake_next(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._to_wake))):
            with suppress(IndexError):  # another thread took the last one
                self._to_wake.popleft().ring()

    def report(self, failed: bool) -> None:
        """Wake the main thread after the last reply or a failure; in ``recv``, after each reply."""
        if failed or self._at_each_reply or not self.busy:
            self._replied.ring()


class ThreadDriver(ObjectDriver, WorkerDriver):
    tag = 0

    def __init__(self, lo: int, hi: int, timeouts: Timeouts, wake_ups: WakeUps) -> None:
        super().__init__(lo, hi, timeouts)
        self.group = lo  # key in WakeUps.busy; later the group's index
        self.failed = False
        self._wake_ups = wake_ups
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

    def placed(self, on_loop: Callable[[ThreadDriver], list[Any]]) -> list[Any]:
        """Return the group's drivers: on the event loop if it is asynchronous, else in a thread."""
        return on_loop(self) if self.host.group.is_asynchronous else [self]

    # -- in the thread ----------------------------------------------------------------

    def _serve(self) -> None:
        last = _NO_REQUEST
        while True:
            self._doorbell.wait(spin=self._wake_ups.spin)
            self._wake_ups.wake_next()
            request = self._request
            if request is last:
                continue
            last = request
            command, arguments = request
            if command == END:
                for function in arguments:
                    function()
                return
            value, failure = None, None
            try:
                value = self.host.execute(command, arguments)
            except BaseException as error:
                failure = as_exception(error)
            self._answer(request, value, failure)
            # While the thread waits, its frame must not keep arguments and results alive.
            del request, arguments, value, failure

    def _answer(self, request: _Request, value: Any, failure: Exception | None) -> None:
        # In this order: after the reply, the main thread may submit another request.
        self._wake_ups.busy.pop(self.group, None)
        self._reply = request, value, failure
        self._wake_ups.report(failure is not None)

    # -- in the main thread -----------------------------------------------------------

    @override
    def submit_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        self.submit(tag, ("step", (actions, tag)))

    @override
    def submit(self, tag: int, packed: tuple[str, Sequence[Any]]) -> None:
        command, arguments = packed
        self._begin(command)
        self._announce()
        # No call in between, so an interrupt cannot come halfway.
        self._wake_ups.busy[self.group] = None
        self.tag, self._request = tag, (command, arguments)

    def _announce(self) -> None:
        self._wake_ups.submitted.append(self._doorbell)

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
        while self._reply[0] is not request:
            if self._request[0] == END:
                raise ClosedVecEnvError("the vectorized environment was closed during this call")
            began, own = monotonic(), self._deadline
            waited = self._wake_ups.wait_for_reply(self.reply_deadline, deadline)
            if waited or self._reply[0] is request:
                continue
            if own is not None and own.has_passed(began):
                raise self._timeout_error()
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError

    def _timeout_error(self) -> WorkerTimeoutError:
        self.failed = True
        return self._hang_error(None, self._active_env(), self._hang_details())

    def _hang_details(self) -> str:
        text = "A thread cannot be killed: it continues until its environment returns. Its stack:\n"
        frame = sys._current_frames().get(self.thread.ident or 0)
        return text if frame is None else text + "".join(traceback.format_stack(frame))

    def _active_env(self) -> int | None:
        active = self.host.progress.at[0]
        return self._running_env(None if active == NO_ACTIVE_ENV else active - 1)

    @override
    def times(self) -> StepTimes:
        return StepTimes.read(self.host.group.clock.memory)

    def end(self, *functions: Callable[[], Any]) -> None:
        """Make the thread call ``functions`` and end after its request, but do not wake it yet."""
        self._announce()
        self._request = END, functions
        self._reply = _NO_REQUEST, None, None
        self._wake_ups.busy.pop(self.group, None)

    def join(self, deadline: float) -> bool:
        """Wait until the thread ends; return False if it still runs at the deadline."""
        if self.thread.ident is None or self.thread is threading.current_thread():
            return True
        self.thread.join(max(0.0, deadline - monotonic()))
        return not self.thread.is_alive()
