"""Wake-ups between the main thread and the threads of one vectorized environment.

With the GIL, threads that are woken together wait for each other. So the main thread wakes a few
threads, and each of them wakes another one before it steps. The main thread itself is woken after
the last reply or a failure; in ``recv``, after each reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic

from xuance_envs._override import override
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.system.doorbell import Doorbell

FIRST_WOKEN = 16  # number of threads that the main thread wakes, with the GIL

# Longest wait in seconds of the main thread for a lock, which Ctrl-C does not interrupt on Windows.
POLL_INTERVAL = 0.1


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
