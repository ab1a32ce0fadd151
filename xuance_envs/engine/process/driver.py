"""Driver of a group in a worker process, and the shutdown of worker processes.

While a driver waits for a reply, it also detects timeouts and the end of any worker process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import FAILED_CLOSE_TIMEOUT, display_name
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, RequestType
from xuance_envs.engine.group.step_clock import StepTimes
from xuance_envs.engine.pickled_commands import PackedCommand, PicklingDriver
from xuance_envs.engine.process.channel import STEP, frame
from xuance_envs.engine.process.shared_memory import pack_buffers
from xuance_envs.engine.process.worker_diagnostics import WorkerDiagnostics
from xuance_envs.engine.process.worker_process import KILL_TIMEOUT, StartSettings, WorkerProcess
from xuance_envs.engine.stream import PeerGoneError
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.deadline import CHECK_INTERVAL
from xuance_envs.engine.system.interrupts import deferred_interrupt
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

_LEAVE = frame(RequestType.LEAVE)


class ProcessDriver(PicklingDriver):
    """Driver of a group in a worker process, which other groups may share."""

    kind_name = "a worker process"

    def __init__(
        self, worker: WorkerProcess, settings: StartSettings, lo: int, hi: int, group: int
    ) -> None:
        super().__init__(lo, hi, (settings.timeout, settings.start_timeout))
        self.worker = worker
        self.channel = worker.channel
        self._settings = settings
        self._common = settings.common
        self._group_prefix, self._step = b"", STEP  # the only group in the process
        self._group = group
        self._diagnostics = WorkerDiagnostics(settings.memory.fd, group)

    def add_group(self, group: int, lo: int, hi: int) -> ProcessDriver:
        """Add another group to the process and return its driver."""
        if not self.worker.alive:
            raise self.death_error()
        self.worker.num_groups += 1
        other = ProcessDriver(self.worker, self._settings, lo, hi, group)
        for each in (self, other):  # they send the number of the group before each request
            each._group_prefix = frame(RequestType.GROUP, b"%d" % each._group)
            each._step = each._group_prefix + STEP
        return other

    def detach(self, close_timeout: float) -> None:
        """Close this group's environments; the process continues with its other groups."""
        self.worker.num_groups -= 1
        reply_deadline = monotonic() + close_timeout
        try:
            self.channel.send(self._group_prefix + _LEAVE, self.tag, reply_deadline)
            self.channel.wait_reply(reply_deadline)
        except PeerGoneError:
            pass  # the process has ended
        except TimeoutError:
            self.worker.kill()

    @property
    @override
    def alive(self) -> bool:
        return self.worker.alive

    @property
    @override
    def fds(self) -> tuple[int, ...]:
        return self.channel.replies, self.worker.peer

    @property
    @override
    def tag(self) -> int:
        return self.channel.tag

    @override
    def submit_step(self, tag: int, actions: bytes | None) -> None:
        message = self._step
        if actions is not None:
            message = self._group_prefix + frame(RequestType.CALL, actions)
        elif self._common is not None:
            if self._common.may_join(tag):
                self.join_step(tag, monotonic())
                return
            message = self._common.step_message(tag)
        reply_deadline = None
        if self.limits_steps or self._command != "step":  # else nothing differs from the last step
            reply_deadline = self._begin("step")
        # If the worker has ended, result() reports it.
        try:
            self.channel.send(message, tag, reply_deadline)
        except (PeerGoneError, TimeoutError):
            return

    def join_step(self, tag: int, began: float) -> None:
        """Take part in a step that a common wake-up starts."""
        assert self._common is not None
        wait_code = partial(self._common.wait_code, self.worker.index)
        self.channel.join(tag, wait_code, self._begin("step", began))

    @override
    def submit(self, tag: int, packed: PackedCommand) -> None:
        command, payload, buffers = packed
        reply_deadline, message = self._begin(command), frame(RequestType.CALL, payload)
        if buffers:
            message = frame(RequestType.BUFFERS, pack_buffers(buffers)) + message
        try:  # as in `submit_step`
            self.channel.send(self._group_prefix + message, tag, reply_deadline)
        except (PeerGoneError, TimeoutError):
            return

    def result(self, deadline: float | None = None) -> Any:
        code, payload = self.raw_reply(deadline)
        return OUTCOME_OF_REPLY.get(code) or self.unpack(code, payload)

    def raw_reply(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Wait for the reply and return its code and payload."""
        while True:
            began, own = monotonic(), self._deadline
            until = began + CHECK_INTERVAL
            if own is not None:
                until = min(until, own.at)
            if deadline is not None:
                until = min(until, deadline)
            try:
                return self.channel.wait_reply(until)
            except PeerGoneError:
                raise self.death_error() from None
            except TimeoutError:
                if own is not None and own.has_passed(began, self.channel.received):
                    raise self._timeout_error() from None
                if deadline is not None and monotonic() >= deadline:
                    raise
                if self.channel.replies < 0:
                    raise PeerGoneError("closed by a signal handler") from None
                for sibling in self.siblings:
                    if not sibling.alive:
                        raise sibling.death_error() from None

    @override
    def times(self) -> StepTimes:
        return self._diagnostics.times()

    def death_error(self) -> WorkerDiedError:
        worker = self.worker
        worker.failed = True
        worker.join()
        command, env = display_name(self._command), self._active_env()
        envs, crash_output = range(self.lo, self.hi), worker.diagnostics.crash_output()
        ended = worker.pid, worker.process.exitcode
        return WorkerDiedError(envs, *ended, command, crash_output, env)

    def _timeout_error(self) -> WorkerTimeoutError:
        """Abort the process and return an error that names the environment that was running."""
        worker = self.worker
        worker.failed = True
        env = self._active_env()
        worker.abort()
        return self._hang_error(worker.pid, env, worker.diagnostics.crash_output())

    def _active_env(self) -> int | None:
        return self._running_env(self._diagnostics.active_env())


def stop_workers(drivers: list[ProcessDriver], close_timeout: float) -> None:
    """End worker processes (by request, SIGTERM, then SIGKILL) unless they have other groups."""
    drivers[:] = [driver for driver in drivers if driver.worker.owner == os.getpid()]
    for driver in [driver for driver in drivers if driver.worker.num_groups > 1]:
        drivers.remove(driver)
        driver.detach(close_timeout)
    workers = [driver.worker for driver in drivers]
    if any(worker.failed for worker in workers):
        close_timeout = min(close_timeout, FAILED_CLOSE_TIMEOUT)
    try:
        for worker in workers:
            worker.channel.request_close()
        _wait_for_end(workers, close_timeout)
        for worker in workers:
            if worker.alive:
                worker.terminate()
        _wait_for_end(workers, KILL_TIMEOUT)
    finally:  # also if Ctrl-C cuts the wait short
        with deferred_interrupt():
            for worker in workers:
                if worker.alive:
                    worker.kill()
            _wait_for_end(workers, KILL_TIMEOUT)
            for worker in workers:
                if worker.alive:  # its guardian does not respond
                    worker.process.kill()
            while drivers:
                drivers.pop().worker.release()


def _wait_for_end(workers: Sequence[WorkerProcess], seconds: float) -> None:
    """Wait until the processes have ended or the time is up, and drain their replies meanwhile."""
    deadline = monotonic() + seconds
    running = {worker.peer: worker.channel for worker in workers if worker.alive}
    channels = {channel.replies: channel for channel in running.values()}
    poll = system.poll()
    for fd in (*running, *channels):
        poll.register(fd, system.POLLIN)
    while running and (left := deadline - monotonic()) > 0:
        for fd, event in poll.poll(left * 1e3):
            if fd in channels and event & system.POLLIN:
                channels[fd].drain()
            else:  # else poll would return immediately every time
                running.pop(fd, None)
                poll.unregister(fd)
