"""A group in a worker process, as a driver.

A request is answered, or the end of the process is noticed at once, whatever it was doing. So is
that it takes longer than it may. While one is waited for, the end of another one is noticed, too.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.backend import STARTING, Packed, WorkerDriver, shown
from xuance_envs.engine.data.step_arrays import StepArrays, first_unstepped
from xuance_envs.engine.group.requests import PLAIN, Request
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.process.black_box import BlackBox
from xuance_envs.engine.process.doorbell import PeerGoneError, frame
from xuance_envs.engine.process.shared_memory import pack_parts
from xuance_envs.engine.process.worker_process import StartSettings, WorkerProcess
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["ProcessDriver"]

LOOK = 0.25
"""Seconds between two looks at the other workers, while one is waited for."""

STOPPED = 1.0
"""Seconds that a look takes longer than it may when this process was stopped: by Ctrl-Z, which
stops its workers, too."""

LATE = 0.05
"""Seconds that the first look after a worker's time may come later and still show that it hangs."""

_STEP = frame(Request.STEP)
_LEAVE = frame(Request.LEAVE)


class ProcessDriver(WorkerDriver):
    """One group of environments in a process of its own, or with others in one.

    Args:
        worker: the process.
        settings: how it was started.
        lo: index of its first environment.
        hi: index after its last environment.
        group: which of the process's groups it is, by the number of its region in the shared
            memory; None for the one that the process began with.
    """

    what = "a worker process"

    # Seconds that this process, and with it all workers, turned out to have been stopped.
    _paused = 0.0

    def __init__(
        self,
        worker: WorkerProcess,
        settings: StartSettings,
        lo: int,
        hi: int,
        group: int | None = None,
    ) -> None:
        super().__init__(lo, hi)
        self.worker = worker
        self._settings = settings
        self._to, self._step = b"", _STEP  # with nobody else in the process
        self._group = worker.index if group is None else group
        self._black_box = BlackBox(settings.memory.fd, self._group)
        self._command = "start"
        self._timeout = settings.timeout
        self._start_timeout = settings.start_timeout
        self._limit: float | None = None
        self._due: float | None = None
        self._paused_before = 0.0
        self._received, self._late = 0, False
        self._rewards: NDArray[np.float64] | None = None  # which tell how far it is in a step

    def share(self, group: int, lo: int, hi: int) -> ProcessDriver:
        """Takes another group into the process; its driver.

        From now on one group of the process is asked at a time, and has answered before another
        one is asked: whoever has the drivers sees to that.

        Args:
            group: the other group's number.
            lo: index of its first environment.
            hi: index after its last environment.

        Raises:
            WorkerDiedError: the process has ended.
        """
        if not self.worker.alive:
            raise self.death()
        self.worker.groups += 1
        other = ProcessDriver(self.worker, self._settings, lo, hi, group)
        for each in (self, other):
            each.say_which()
        return other

    def say_which(self) -> None:
        """Says with each request from now on which group of the process it is for."""
        self._to = frame(Request.GROUP, b"%d" % self._group)
        self._step = self._to + _STEP

    def leave(self, patience: float) -> None:
        """Closes the environments, and leaves the process to its other groups.

        Args:
            patience: seconds that may take; the process is killed if it takes more.
        """
        self.worker.groups -= 1
        due = monotonic() + patience
        try:
            self.worker.channel.ask(self._to + _LEAVE, self.tag, due)
            self.worker.channel.answer(due)
        except PeerGoneError:
            pass  # it has left by ending
        except TimeoutError:
            self.worker.kill()

    @property
    def alive(self) -> bool:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`."""
        return self.worker.alive

    @property
    def fds(self) -> tuple[int, ...]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self.worker.channel.replies, self.worker.peer

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`; the group writes to them."""
        self._rewards = arrays.rewards

    @property
    def tag(self) -> int:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self.worker.channel.tag

    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return frame(Request.CALL, dumps_for_worker(("step", (actions,))))

    def ask_step(self, tag: int, actions: bytes | None) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        due = self._begin("step", self._timeout)
        # A worker that is gone is noticed, and reported, when its result is asked for.
        try:
            message = self._step if actions is None else self._to + actions
            self.worker.channel.ask(message, tag, due)
        except (PeerGoneError, TimeoutError):
            return

    def ask(self, tag: int, packed: Packed) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        command, payload, lent = packed
        due = self._begin(command, self._start_timeout if command in STARTING else self._timeout)
        first = self._to + frame(Request.LENT, pack_parts(lent)) if lent else self._to
        try:  # as in `ask_step`
            self.worker.channel.ask(first + frame(Request.CALL, payload), tag, due)
        except (PeerGoneError, TimeoutError):
            return

    def _begin(self, command: str, limit: float | None) -> float | None:
        """Takes note of a request that is about to be made; by when it is to be answered."""
        self._command, self._limit, self._due = command, limit, None
        self._received, self._late = 0, False
        return None if limit is None else self._give(limit)

    def _give(self, seconds: float) -> float:
        due = self._due = monotonic() + seconds
        self._paused_before = ProcessDriver._paused
        return due

    @property
    def due(self) -> float | None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        if self._due is None:
            return None
        return self._due + ProcessDriver._paused - self._paused_before

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`.

        Raises:
            WorkerDiedError: it has ended, or one of its siblings.
            WorkerTimeoutError: it has not answered in the time it was given; it has ended now.
        """
        code, payload = self.answer(deadline)
        return PLAIN.get(code) or self.unpack(code, payload)

    def answer(self, deadline: float | None = None) -> tuple[int, bytes]:
        """The same as the worker sent it: the reply, and its payload."""
        while True:
            began = monotonic()
            until = began + LOOK
            if self._due is not None:
                until = min(until, self._due + ProcessDriver._paused - self._paused_before)
            if deadline is not None:
                until = min(until, deadline)
            try:
                return self.worker.channel.answer(until)
            except PeerGoneError:
                raise self.death() from None
            except TimeoutError:
                now, due = monotonic(), self.due
                if now > began + LOOK + STOPPED:
                    ProcessDriver._paused += now - began
                elif due is not None and now >= due and not self._has_longer(began > due + LATE):
                    raise self._overdue() from None
                if deadline is not None and now >= deadline:
                    raise
                for sibling in self.siblings:
                    if not sibling.alive:
                        raise sibling.death() from None

    def _has_longer(self, late: bool) -> bool:
        """Whether its time is not over after all; it is then given as long again.

        More of an answer may have come: a long one does not fit the pipe, it takes a caller that
        reads it. Or nobody looked when its time was over, and both may have been stopped: that is
        believed once.

        Args:
            late: whether nobody looked.
        """
        before, self._received = self._received, self.worker.channel.received
        if late and not self._late:
            self._late = True
        elif self._received == before:
            return False
        assert self._limit is not None
        self._give(self._limit)
        return True

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._black_box.times()

    def death(self) -> WorkerDiedError:
        """The error that says how it ended; it has."""
        worker = self.worker
        worker.failed = True
        worker.join()
        command, env = shown(self._command), self._env_at_work()
        envs, last_words = range(self.lo, self.hi), worker.black_box.last_words()
        return WorkerDiedError(envs, worker.pid, worker.process.exitcode, command, last_words, env)

    def _overdue(self) -> WorkerTimeoutError:
        """Ends the process, and makes the error that says where it was."""
        worker = self.worker
        worker.failed = True
        command, env = shown(self._command), self._env_at_work()
        worker.abort()
        assert self._limit is not None
        envs, last_words = range(self.lo, self.hi), worker.black_box.last_words()
        return WorkerTimeoutError(envs, worker.pid, self._limit, command, last_words, env)

    def _env_at_work(self) -> int | None:
        place = self._black_box.place()
        if place is None and self._command == "step" and self._rewards is not None:
            place = first_unstepped(self._rewards)
        return None if place is None else self.lo + place
