"""A worker process of a session: what is done in it, how that is waited for, and its end.

What it guarantees:

- The event loop is never blocked: what may take long is done in a thread, and a step is waited
  for as any other descriptor is.
- One thing is done at a time. The session sees to that, whose environments may be in one process
  that were created by several requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.worker_process import WorkerProcess
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError
from xuance_envs.remote.failures import RefusedError, no_session
from xuance_envs.remote.serving.admission import Quota
from xuance_envs.remote.serving.fifo_semaphore import FifoSemaphore
from xuance_envs.remote.serving.shared_timer import SharedTimer
from xuance_envs.remote.serving.usage import Usage

__all__ = ["SLOW_STEP", "SessionProcess"]

T = TypeVar("T")

POLL_INTERVAL = 0.005
"""Seconds between two looks whether a command has been done, when the environments are closed."""

SLOW_STEP = 0.01
"""Seconds after which a step counts as one that takes long."""


class SessionProcess:
    """A process, before it has been started and until all that share it have left it."""

    def __init__(
        self,
        seconds: float,
        quotas: Sequence[Quota] = (),
        step_slots: FifoSemaphore | None = None,
        slow_step_timer: SharedTimer | None = None,
    ) -> None:
        self._backends: list[ProcessBackend] = []
        self.environments = 0
        self.busy = False
        self.closing = False
        self.usage = Usage(0.0, 0)
        self._request_timeout = seconds
        self._quotas = quotas
        self._step_slots = step_slots
        self._held_slots: FifoSemaphore | None = None
        self._slow_step_timer = (
            SharedTimer(SLOW_STEP) if slow_step_timer is None else slow_step_timer
        )
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()  # which asks the system for a process id each time
        self._thread = ThreadPoolExecutor(1, "xuance_envs-host")
        self._command_future: Future[Any] | None = None
        self._watched_fds: tuple[int, ...] = ()
        self._reply_event: asyncio.Future[bool] | None = None
        self._kill_reason: RefusedError | None = None
        self._exit_message: str | None = None
        self._num_users = 0
        self._counted = 0
        self._count(1)

    # -- who is in it -----------------------------------------------------------------

    def add_envs(self, environments: int) -> None:
        """Some more environments are to be in it."""
        self._num_users += 1
        self.environments += environments

    def add_backend(self, backend: ProcessBackend) -> None:
        """Takes note of what is about to start some; what has ended meanwhile is forgotten."""
        self._backends = [each for each in self._backends if each.workers]
        self._backends.append(backend)

    def remove_envs(self, environments: int) -> None:
        """Environments are not in it any more; with the last of them it has ended, or will."""
        self._num_users -= 1
        self.environments -= environments
        if not self._num_users:
            self._thread.shutdown(wait=False)
            self._count(0)
            for quota in self._quotas:
                quota.cpu += self.usage.cpu
            self.usage = Usage(0.0, 0)

    @property
    def running_backend(self) -> ProcessBackend | None:
        """That of which it has environments still; None where it has to be started."""
        return next((backend for backend in self._backends if backend.workers), None)

    def _workers(self) -> Iterator[WorkerProcess]:
        return (driver.worker for each in self._backends for driver in tuple(each.workers))

    @property
    def pid(self) -> int | None:
        """The id of the process that all others of theirs come from, as long as it is there."""
        return next((worker.pid for worker in self._workers()), None)

    @property
    def alive(self) -> bool:
        """Whether it has been started, and has not ended."""
        return any(worker.alive for worker in self._workers())

    def count(self) -> None:
        """Counts it no more where it has ended."""
        if not self.alive:
            self._count(0)

    def _count(self, processes: int) -> None:
        before, self._counted = self._counted, processes
        for quota in self._quotas:
            quota.add(0, processes - before)

    # -- its end ----------------------------------------------------------------------

    def kill(self) -> None:
        """Ends it; whoever waits for its answer is who notices."""
        for worker in self._workers():
            worker.kill()

    def terminate(self, reason: RefusedError) -> None:
        """Ends it; what is being done in it fails for this reason."""
        self._kill_reason = reason
        self.kill()

    def check_alive(self) -> None:
        """Raises where it has ended with other environments of the session than those asked."""
        if self._exit_message is not None:
            raise RefusedError(
                409,
                "closed",
                "these environments shared a process with others of the session, and it ended "
                f"with those: {self._exit_message}",
            )

    async def wait_idle(self, seconds: float) -> None:
        """Waits until no command is being done, at most so long."""
        loop = self._loop
        until = loop.time() + seconds
        while self.busy and loop.time() < until:
            await asyncio.sleep(POLL_INTERVAL)

    @property
    def is_running(self) -> bool:
        """Whether its thread is at a command, be it that nobody waits for that any more."""
        return self._command_future is not None and not self._command_future.done()

    # -- commands ---------------------------------------------------------------------

    def __enter__(self) -> None:
        """A command begins."""
        self.busy = True

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """A command is over."""
        self.busy = False
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            self._exit_message = str(error).partition("\n")[0]
        if isinstance(error, WorkerDiedError):
            if self._kill_reason is not None:
                raise self._kill_reason from None
            if self.closing:
                raise no_session() from None

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Has its thread do something that is no command."""
        return self._thread.submit(act)

    async def run(self, act: Callable[[], T]) -> T:
        """Has its thread do a command, or a part of one."""
        self.remove_readers()
        running = self._thread.submit(act)
        self._command_future = running
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self.count()

    # -- steps ------------------------------------------------------------------------

    def try_acquire_slot(self) -> bool:
        """Lets it step if nobody else has to wait for that; :meth:`dismiss` has to follow."""
        if self._step_slots is None:
            return True
        if not self._step_slots.try_acquire():
            return False
        self._held_slots = self._step_slots
        return True

    async def acquire_slot(self) -> None:
        """Waits until it may step; :meth:`dismiss` has to follow."""
        if self._step_slots is not None:
            await self._step_slots.acquire()
            self._held_slots = self._step_slots

    def release_slot(self) -> None:
        """Lets others step; again, it does nothing."""
        held, self._held_slots = self._held_slots, None
        if held is not None:
            held.release()

    async def wait_for_reply(self, wake_fds: tuple[int, ...]) -> bool:
        """Waits until it has answered, or has ended, or should have by now."""
        loop = self._loop
        event = self._reply_event = loop.create_future()
        if not self._watched_fds:
            self._watched_fds = wake_fds
            for fd in wake_fds:
                loop.add_reader(fd, self._set_reply_event, True)
        self._slow_step_timer.set(self)
        try:
            return bool(await event)
        finally:
            self._slow_step_timer.stop(self)
            if self._timeout_timer is not None:
                self._timeout_timer.cancel()
                self._timeout_timer = None
            self._reply_event = None

    def on_timeout(self) -> None:
        """Whoever takes long may be waiting, and keeps nobody else from stepping."""
        self.release_slot()
        self._timeout_timer = self._loop.call_later(
            self._request_timeout - SLOW_STEP, self._set_reply_event, False
        )

    def _set_reply_event(self, wait_for_reply: bool) -> None:
        event = self._reply_event
        if event is None:  # it has ended while nothing was asked of it
            self.remove_readers()
        elif not event.done():
            event.set_result(wait_for_reply)

    def remove_readers(self) -> None:
        """Leaves what it says to a thread, or to nobody."""
        for fd in self._watched_fds:
            self._loop.remove_reader(fd)
        self._watched_fds = ()
