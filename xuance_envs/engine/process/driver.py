"""A group in a worker process, as a driver.

A request is answered, or the end of the process is noticed at once, whatever it was doing. So is
that it takes longer than it may. While one is waited for, the end of another one is noticed, too.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.backend import STARTUP_COMMANDS, PackedCommand, WorkerDriver, display_name
from xuance_envs.engine.data.step_arrays import StepArrays, first_unstepped
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, RequestType
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.process.channel import PeerGoneError, frame
from xuance_envs.engine.process.shared_memory import pack_buffers
from xuance_envs.engine.process.worker_diagnostics import WorkerDiagnostics
from xuance_envs.engine.process.worker_process import StartSettings, WorkerProcess
from xuance_envs.engine.serialization import dumps_for_worker
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["ProcessDriver"]

POLL_INTERVAL = 0.25
"""Seconds between two looks at the other workers, while one is waited for."""

SUSPENSION_THRESHOLD = 1.0
"""Seconds that a look takes longer than it may when this process was stopped: by Ctrl-Z, which
stops its workers, too."""

LATE_TOLERANCE = 0.05
"""Seconds that the first look after a worker's time may come later and still show that it hangs."""

_STEP = frame(RequestType.STEP)
_LEAVE = frame(RequestType.LEAVE)


class ProcessDriver(WorkerDriver):
    """One group of environments in a process of its own, or with others in one."""

    kind_name = "a worker process"

    # Seconds that this process, and with it all workers, turned out to have been stopped.
    _suspended = 0.0

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
        self._group_prefix, self._step = b"", _STEP  # with nobody else in the process
        self._group = worker.index if group is None else group
        self._diagnostics = WorkerDiagnostics(settings.memory.fd, self._group)
        self._command = "start"
        self._timeout = settings.timeout
        self._start_timeout = settings.start_timeout
        self._limit: float | None = None
        self._reply_deadline: float | None = None
        self._suspended_before = 0.0
        self._received, self._was_late = 0, False
        self._rewards: NDArray[np.float64] | None = None  # which tell how far it is in a step

    def add_group(self, group: int, lo: int, hi: int) -> ProcessDriver:
        """Takes another group into the process; its driver.

        From now on one group of the process is asked at a time, and has answered before another
        one is asked: whoever has the drivers sees to that.
        """
        if not self.worker.alive:
            raise self.death_error()
        self.worker.num_groups += 1
        other = ProcessDriver(self.worker, self._settings, lo, hi, group)
        for each in (self, other):
            each.use_group_prefix()
        return other

    def use_group_prefix(self) -> None:
        """Says with each request from now on which group of the process it is for."""
        self._group_prefix = frame(RequestType.GROUP, b"%d" % self._group)
        self._step = self._group_prefix + _STEP

    def detach(self, close_timeout: float) -> None:
        """Closes the environments, and leaves the process to its other groups."""
        self.worker.num_groups -= 1
        reply_deadline = monotonic() + close_timeout
        try:
            self.worker.channel.send(self._group_prefix + _LEAVE, self.tag, reply_deadline)
            self.worker.channel.wait_reply(reply_deadline)
        except PeerGoneError:
            pass  # it has left by ending
        except TimeoutError:
            self.worker.kill()

    @property
    @override
    def alive(self) -> bool:
        return self.worker.alive

    @property
    @override
    def fds(self) -> tuple[int, ...]:
        return self.worker.channel.replies, self.worker.peer

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.backend.WorkerDriver`; the group writes to them."""
        self._rewards = arrays.rewards

    @property
    @override
    def tag(self) -> int:
        return self.worker.channel.tag

    @override
    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        return frame(RequestType.CALL, dumps_for_worker(("step", (actions,))))

    @override
    def submit_step(self, tag: int, actions: bytes | None) -> None:
        reply_deadline = self._begin("step", self._timeout)
        # A worker that is gone is noticed, and reported, when its result is asked for.
        try:
            message = self._step if actions is None else self._group_prefix + actions
            self.worker.channel.send(message, tag, reply_deadline)
        except (PeerGoneError, TimeoutError):
            return

    @override
    def submit(self, tag: int, packed: PackedCommand) -> None:
        command, payload, buffers = packed
        reply_deadline = self._begin(
            command, self._start_timeout if command in STARTUP_COMMANDS else self._timeout
        )
        first = (
            self._group_prefix + frame(RequestType.BUFFERS, pack_buffers(buffers))
            if buffers
            else self._group_prefix
        )
        try:  # as in `submit_step`
            self.worker.channel.send(first + frame(RequestType.CALL, payload), tag, reply_deadline)
        except (PeerGoneError, TimeoutError):
            return

    def _begin(self, command: str, limit: float | None) -> float | None:
        """Takes note of a request that is about to be made; by when it is to be answered."""
        self._command, self._limit, self._reply_deadline = command, limit, None
        self._received, self._was_late = 0, False
        return None if limit is None else self._extend_deadline(limit)

    def _extend_deadline(self, seconds: float) -> float:
        reply_deadline = self._reply_deadline = monotonic() + seconds
        self._suspended_before = ProcessDriver._suspended
        return reply_deadline

    @property
    @override
    def reply_deadline(self) -> float | None:
        if self._reply_deadline is None:
            return None
        return self._reply_deadline + ProcessDriver._suspended - self._suspended_before

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        code, payload = self.raw_reply(deadline)
        return OUTCOME_OF_REPLY.get(code) or self.unpack(code, payload)

    def raw_reply(self, deadline: float | None = None) -> tuple[int, bytes]:
        """The same as the worker sent it: the reply, and its payload."""
        while True:
            began = monotonic()
            until = began + POLL_INTERVAL
            if self._reply_deadline is not None:
                until = min(
                    until, self._reply_deadline + ProcessDriver._suspended - self._suspended_before
                )
            if deadline is not None:
                until = min(until, deadline)
            try:
                return self.worker.channel.wait_reply(until)
            except PeerGoneError:
                raise self.death_error() from None
            except TimeoutError:
                now, reply_deadline = monotonic(), self.reply_deadline
                if now > began + POLL_INTERVAL + SUSPENSION_THRESHOLD:
                    ProcessDriver._suspended += now - began
                elif (
                    reply_deadline is not None
                    and now >= reply_deadline
                    and not self._may_extend(began > reply_deadline + LATE_TOLERANCE)
                ):
                    raise self._timeout_error() from None
                if deadline is not None and now >= deadline:
                    raise
                for sibling in self.siblings:
                    if not sibling.alive:
                        raise sibling.death_error() from None

    def _may_extend(self, late: bool) -> bool:
        """Whether its time is not over after all; it is then given as long again.

        More of an answer may have come: a long one does not fit the pipe, it takes a caller that
        reads it. Or nobody looked when its time was over, and both may have been stopped: that is
        believed once.
        """
        before, self._received = self._received, self.worker.channel.received
        if late and not self._was_late:
            self._was_late = True
        elif self._received == before:
            return False
        assert self._limit is not None
        self._extend_deadline(self._limit)
        return True

    @override
    def times(self) -> StepTimes:
        return self._diagnostics.times()

    def death_error(self) -> WorkerDiedError:
        """The error that says how it ended; it has."""
        worker = self.worker
        worker.failed = True
        worker.join()
        command, env = display_name(self._command), self._active_env()
        envs, crash_output = range(self.lo, self.hi), worker.diagnostics.crash_output()
        return WorkerDiedError(
            envs, worker.pid, worker.process.exitcode, command, crash_output, env
        )

    def _timeout_error(self) -> WorkerTimeoutError:
        """Ends the process, and makes the error that says where it was."""
        worker = self.worker
        worker.failed = True
        command, env = display_name(self._command), self._active_env()
        worker.abort()
        assert self._limit is not None
        envs, crash_output = range(self.lo, self.hi), worker.diagnostics.crash_output()
        return WorkerTimeoutError(envs, worker.pid, self._limit, command, crash_output, env)

    def _active_env(self) -> int | None:
        place = self._diagnostics.active_env()
        if place is None and self._command == "step" and self._rewards is not None:
            place = first_unstepped(self._rewards)
        return None if place is None else self.lo + place
