"""Common wake-up: one write starts a step in all workers, and one write reports its end.

A step through pipes needs a write and a read for each worker. For a common wake-up, both sides
share event counters (eventfd) and an array with one byte per worker:

- ``starts[0]``, ``starts[1]``: the main process increments one to start a step. Workers poll it
  but do not read it, because a read would reset it. Steps alternate between the two, so no worker
  reacts twice to the same wake-up.
- ``tokens``: a semaphore. A worker that has finished takes a token. A worker that finds none
  is the last: it refills the tokens and rings the bell.
- ``bell``: the main process waits for it, and for the end of any worker.
- ``codes``: ``WAITING`` requests a step from a worker, which replaces the code by its reply. A
  worker that finds another code does not step. It only takes a token, and then reads its request
  from its pipe.

If many processes poll a counter, the kernel wakes them one after another. From ``MIN_TREE_WORKERS``
workers on, the workers therefore form teams, each with its own pair of ``starts``. The main process
wakes the first team, and each worker of the first team wakes one other team before it steps.

The main process is *armed* when the next step can use the common wake-up.

Invariants:

1. Between steps of an armed main process, all teams wait for ``starts`` with the same index. The
   counters with this index and the bell are zero, and there is one token fewer than workers.
2. A worker writes its results, then its code, then takes a token, then writes the payload, if any,
   to its pipe. So its results are complete when its code is set, and all results are
   complete when the bell has rung. The system calls in between are memory barriers.
3. A process that wakes a team clears the counter of the last step, whose bell has rung, and then
   increments the other one. So every worker has reacted to a wake-up before it is cleared.
4. A failure (a worker ended or a deadline passed) disarms the main process, because it has no
   record of the tokens that were taken. It then polls the workers' codes. To re-arm, it clears
   ``starts``, and begins a step through the pipes. The requests of this step also make each worker
   wait for ``starts[0]`` next. When all workers have replied, no worker uses ``tokens`` and
   ``bell``, and the main process sets them.
5. Every call can be repeated after an interrupt such as KeyboardInterrupt. For this, a write and
   the record that it happened are made in a single C call (``list.extend(map(os.write, ...))``),
   and related attributes are assigned in one statement.
6. A second wake-up in the same step has no effect. The main process wakes all teams itself if a
   worker may not have woken a team: if a worker reads its request from its pipe or fails, or if the
   bell has not rung after ``PATIENCE`` seconds. A worker wakes a team only while its code is
   ``WAITING``, thus before this step can end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import isqrt
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.driver import CommonDriver, Driver
from xuance_envs.engine.group.outcome import OK, Outcome
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, ReplyType, RequestType
from xuance_envs.engine.process.channel import STEP, Inbox, frame
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.stream import PeerGoneError
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.deadline import CHECK_INTERVAL, SUSPENSION_THRESHOLD
from xuance_envs.engine.system.interrupts import deferred_interrupt
from xuance_envs.errors import ClosedVecEnvError

MIN_WORKERS = 8  # number of workers from which a common wake-up is faster than a pipe each
MIN_TREE_WORKERS = 32  # number of workers from which they also wake each other
PATIENCE = 5e-3  # seconds after which the main process wakes all teams itself

# Codes besides replies, in this order: reply in the pipe, no reply yet, request in the pipe.
IN_PIPE, WAITING, DIRECT = range(3)

_COUNTER_BYTES = 8  # size of a read of an eventfd, which returns the counter
_BELL_TIMEOUT = 1.0  # seconds until the bell must ring after the last reply
_FIRST_PAUSE, _LONGEST_PAUSE = 1e-4, 1e-2  # seconds between two checks of a code

_FOLLOW_AND_STEP = frame(RequestType.FOLLOW) + STEP


def _increment(number: int) -> bytes:
    """Return the bytes whose write adds a number to a counter."""
    return number.to_bytes(_COUNTER_BYTES, sys.byteorder)


def _drain(counter: int) -> None:
    """Set a counter to zero."""
    with suppress(BlockingIOError):
        while True:
            os.read(counter, _COUNTER_BYTES)


_ONE = _increment(1)


def open_common_step(
    memory: SharedMemory, codes_at: int, workers: int, spin: float, expect_ready: bool
) -> CommonStep | None:
    """Open the counters and map the codes; return None if the system has no such counters."""
    team = isqrt(workers - 1) + 1 if workers >= MIN_TREE_WORKERS else workers
    teams = -(-workers // team)
    codes = memoryview(memory.map(codes_at, workers))
    with deferred_interrupt():
        counters = system.open_counters(True, False, *[False, False] * teams)
        if counters is None:
            return None
        return CommonStep(counters, codes, codes_at, team, spin, expect_ready)


def _wake(starts: Sequence[int], parity: int, record: list[int]) -> None:
    """Wake a team; record that the counter was incremented."""
    with suppress(BlockingIOError):  # cleared by arming, or by an earlier call
        os.read(starts[1 - parity], _COUNTER_BYTES)
    record.extend(map(os.write, (starts[parity],), (_ONE,)))


class CommonStep(CommonDriver):
    """The main process's side of the common wake-up."""

    def __init__(
        self, counters: Sequence[int], codes: memoryview, codes_at: int, team: int, *of_bell: Any
    ) -> None:
        self._counters = counters
        self._tokens, self._bell_fd, *starts = counters
        self._starts, *self._others = zip(starts[::2], starts[1::2], strict=True)  # of each team
        self._codes, self._codes_at, self._team = codes, codes_at, team
        self._all_waiting = bytes([WAITING]) * len(codes)
        self._all_ok = bytes([ReplyType.OK]) * len(codes)
        self._bell_options = of_bell
        self._workers: Sequence[Any] = ()
        self._drivers: Sequence[Driver] = ()
        self._local: Sequence[tuple[int, Driver]] = ()
        # Drivers that each step calls: all drivers if they wrap the workers, else only local ones.
        self._asked: Sequence[Driver] = ()
        self._through_drivers = False
        self._armed, self._arming_tag = False, -1
        self._number, self._began = 0, 0.0
        self._rung: list[int] = [0]
        self._handed_over, self._woke_all = False, True

    def share_of(self, worker: int) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Return the counters that one worker uses; the offset and the number of all codes."""
        team, place = divmod(worker, self._team)
        others = [] if team else self._others[place : place + 1]
        fds = self._tokens, self._bell_fd, *chain([self._starts, *self._others][team], *others)
        return fds, (self._codes_at, len(self._codes))

    def attach(
        self, workers: Sequence[Any], drivers: Sequence[Driver], timeout: float | None
    ) -> None:
        """Set ``workers``, a list that restarts change, and ``drivers``, which may wrap workers."""
        self._workers, self._drivers, self._timeout = workers, drivers, timeout
        self._local = [(k, each) for k, each in enumerate(drivers) if each.runs_in_result]
        self._through_drivers = drivers[0] is not workers[0]
        self._asked = drivers if self._through_drivers else [each for _, each in self._local]

    def close(self) -> None:
        self._workers = self._drivers = self._asked = self._local = ()  # they refer to this object
        self._armed, self._others = False, []
        counters, self._counters = self._counters, ()
        for fd in counters:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    # -- step -------------------------------------------------------------------------

    @override
    def start(self, tag: int, actions: Mapping[int, Any]) -> bool:
        if self.tag != tag:
            if actions or not self._armed:
                # Prepare to arm with this step, which starts through the pipes, without actions.
                for counter in () if actions else chain(self._starts, *self._others):
                    _drain(counter)
                self._arming_tag = -1 if actions else tag
                return False
            self._codes[:] = self._all_waiting
            began, number = monotonic(), self._number + 1
            self.tag, self._number, self._began = tag, number, began
            self._woke_all = not self._others
            self._rung, self._bell.counts, self._handed_over = [], [], False
        for driver in self._asked:
            if driver.tag != tag:
                driver.submit_step(tag, None)
        if not self._rung:
            if self._through_drivers:
                joined = [each.channel.has_joined(tag) for each in self._workers]
                self._codes[:] = bytes([WAITING if each else DIRECT for each in joined])
            _wake(self._starts, self._number % 2, self._rung)
        if self._through_drivers and not self._woke_all and DIRECT in bytes(self._codes):
            self._wake_all()
        return True

    def _wake_all(self) -> None:
        """Wake the teams that a stopped or ended worker may not have woken."""
        for starts in self._others:
            _wake(starts, self._number % 2, [])
        self._woke_all = True

    def may_join(self, tag: int) -> bool:
        """Return whether the step can still be started by the common wake-up."""
        return self.tag == tag and not self._rung

    @override
    def outcomes(self) -> list[tuple[int, Outcome]]:
        outcomes = [(k, driver.result()) for k, driver in self._local]
        if self._through_drivers or self._handed_over or not self._all_have_replied():
            self.hand_over()
            outcomes += [(k, self._drivers[k].result()) for k in range(len(self._workers))]
            # No worker may use the counters when the next step does.
            if self._armed:
                try:
                    self._wait_for_bell(monotonic() + _BELL_TIMEOUT)
                except (PeerGoneError, TimeoutError):
                    self.disarm()
        elif (codes := bytes(self._codes)) != self._all_ok:
            for k, code in enumerate(codes):
                if code != ReplyType.OK:
                    outcomes.append((k, OUTCOME_OF_REPLY.get(code) or self._result(k)))
        return [(k, outcome) for k, outcome in outcomes if outcome is not OK]

    def _result(self, k: int) -> Outcome:
        driver = self._workers[k]
        if driver.tag != self.tag:
            driver.join_step(self.tag, self._began)
        outcome: Outcome = driver.result()
        return outcome

    def _all_have_replied(self) -> bool:
        """Wait for the bell; return False if drivers must wait: a worker ended or is slow."""
        now = monotonic()
        until = now + CHECK_INTERVAL
        if self._timeout is not None:
            until = min(until, self._began + self._timeout)
        try:
            self._wait_for_bell(until)
        except PeerGoneError:
            return False
        except TimeoutError:
            late = monotonic() - now
            if late > CHECK_INTERVAL + SUSPENSION_THRESHOLD:
                self._began += late
            return False
        return True

    def _wait_for_bell(self, deadline: float | None) -> None:
        if not self._woke_all:
            patience = self._began + PATIENCE
            with suppress(TimeoutError):
                self._bell.receive(patience if deadline is None else min(patience, deadline))
                return
            self._wake_all()
        self._bell.receive(deadline)

    @override
    def hand_over(self) -> None:
        if not self._counters:
            raise ClosedVecEnvError("the vectorized environment was closed during this step")
        self.start(self.tag, {})  # completes a start that was interrupted
        if not self._through_drivers:
            for driver in self._workers:
                if driver.tag != self.tag:
                    driver.join_step(self.tag, self._began)
        self._handed_over = True

    def wait_code(self, k: int, deadline: float | None) -> int:
        """Wait until worker ``k``, which takes part in the step, has replied; return its code."""
        pause = _FIRST_PAUSE
        while (code := self._codes[k]) == WAITING:
            if self._armed:
                try:
                    self._wait_for_bell(deadline)
                except PeerGoneError:
                    self.disarm()
            elif not self._workers[k].alive:
                if self._codes[k] == WAITING:
                    raise PeerGoneError
            else:
                left = pause if deadline is None else deadline - monotonic()
                if left <= 0:
                    raise TimeoutError
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
        return code

    # -- arming -----------------------------------------------------------------------

    def disarm(self) -> None:
        """Start steps through the workers' pipes until this process is armed again."""
        if self._armed and self._rung:
            self._wake_all()
        self._armed = False

    def step_message(self, tag: int) -> bytes:
        """Return the request that starts this step through a worker's pipe."""
        return _FOLLOW_AND_STEP if tag == self._arming_tag else STEP

    @override
    def started_by_drivers(self, tag: int) -> None:
        channels = [driver.channel for driver in self._workers]
        if not all([channel.has_reply_to(tag, _FOLLOW_AND_STEP) for channel in channels]):
            return
        _drain(self._tokens)
        _drain(self._bell_fd)
        os.write(self._tokens, _increment(len(channels) - 1))
        ends = system.watch_together([driver.worker.peer for driver in self._workers])
        self._ends, self._number = ends, 1  # so that the next step uses starts[0]
        self._bell = Inbox(self._bell_fd, ends.fileno(), *self._bell_options)
        self._armed = True


class Follower:
    """A worker's side of the common wake-up."""

    def __init__(
        self, counters: Sequence[int], codes: tuple[int, int], index: int, memory: SharedMemory
    ) -> None:
        self.following = False
        if not counters:
            return
        start, workers = codes
        self._tokens, self._bell, *starts = counters
        self._starts, self._others = starts[:2], starts[2:]  # of its team; of a team to wake
        self._full = _increment(workers - 1)
        mapped = memory.map(start, workers)
        system.make_private_in_forks(mapped, memory.fd, start)
        self._codes, self._index = memoryview(mapped), index

    def follow(self) -> None:
        """Take common wake-ups from now on."""
        self.following, self._parity = True, 0

    def is_woken(self, requests: Inbox) -> bool:
        """Wait for a wake-up or a message; return True if this worker must step."""
        while self.following and not requests.wait_with(self._starts[self._parity]):
            parity, self._parity = self._parity, self._parity ^ 1
            if self._codes[self._index] == WAITING:
                if self._others:
                    _wake(self._others, parity, [])
                return True
            self._take_token()
        return False

    def finish(self, reply: ReplyType) -> bool:
        """Write the reply's code; return True if the reply itself must go through the pipe."""
        code = reply if reply in OUTCOME_OF_REPLY else IN_PIPE
        self._codes[self._index] = code
        self._take_token()
        return code == IN_PIPE

    def _take_token(self) -> None:
        try:
            os.read(self._tokens, _COUNTER_BYTES)
        except BlockingIOError:  # the last worker
            os.write(self._tokens, self._full)
            os.write(self._bell, _ONE)
