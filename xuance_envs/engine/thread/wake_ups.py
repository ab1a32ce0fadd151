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
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.doorbell import Doorbell

FIRST_WOKEN = 16  # number of threads that the main thread wakes, with the GIL

# Longest wait for a lock in seconds; limited on Windows, where Ctrl-C does not interrupt it.
LONGEST_WAIT = -1.0 if system.LOCK_WAITS_ARE_INTERRUPTIBLE else 0.1


class WakeUps(Poller):
    def __init__(self) -> None:
        self.submitted: list[Doorbell] = []  # of threads with a request, since the last wake_all
        self.busy: dict[int, None] = {}  # groups with unanswered requests
        self.to_wake: deque[Doorbell] = deque()
        self.all_at_once = False
        self.wake_loop: Callable[[], None] = lambda: None
        self._interrupted = False
        self._at_each_reply = False
        self._replied = Doorbell()

    # -- in the main thread -----------------------------------------------------------

    def wake_all(self) -> None:
        """Wake the threads and the event loop to which requests were submitted."""
        if self.submitted:
            all_at_once = self.all_at_once or self._interrupted
            self._interrupted = True  # a thread may be neither awake nor in to_wake
            self.to_wake.extend(self.submitted)
            self.wake_next(len(self.to_wake) if all_at_once else FIRST_WOKEN)
            self.submitted, self._interrupted = [], False
        self.wake_loop()

    def wait_for_reply(self, timeout: float) -> bool:
        return self._replied.wait(timeout=timeout)

    @override
    def poll(self, busy: Collection[int]) -> set[int]:
        self.wake_all()
        return set(busy).difference(self.busy.copy())

    @override
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        self._at_each_reply = True
        while not (ready := self.poll(busy)):
            left = LONGEST_WAIT
            if until is not None:
                remaining = max(0.0, until - monotonic())
                left = remaining if left < 0 else min(left, remaining)
            if not self.wait_for_reply(left) and until is not None and monotonic() >= until:
                break
        self._at_each_reply = False
        return ready

    # -- in any thread ----------------------------------------------------------------

    def wake_next(self, count: int = 1) -> None:
        with suppress(IndexError):  # all are awake
            for _ in range(count):
                self.to_wake.popleft().ring()

    def report(self, failed: bool) -> None:
        """Wake the main thread for a reply if it waits for no other one."""
        if failed or self._at_each_reply or not self.busy:
            self._replied.ring()
