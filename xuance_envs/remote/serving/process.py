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

from xuance_envs.engine.process.processes import Processes
from xuance_envs.engine.process.worker_process import WorkerProcess
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError
from xuance_envs.remote.failures import RefusedError, no_session
from xuance_envs.remote.serving.admission import Tally
from xuance_envs.remote.serving.alarm import Alarm
from xuance_envs.remote.serving.turnstile import Turnstile
from xuance_envs.remote.serving.usage import Usage

__all__ = ["LONG", "SessionProcess"]

T = TypeVar("T")

LOOK = 0.005
"""Seconds between two looks whether a command has been done, when the environments are closed."""

LONG = 0.01
"""Seconds after which a step counts as one that takes long."""


class SessionProcess:
    """A process, before it has been started and until all that share it have left it.

    Args:
        seconds: that a request may take in it.
        tallies: where it counts until it has ended.
        turnstile: what each step goes through; None for nothing.
        alarm: tells which steps take long; None for one of its own.

    Attributes:
        environments: how many there are in it.
        busy: whether a command is being done.
        closing: whether nothing is to be done in it any more.
        usage: what it took when last looked at.
    """

    def __init__(
        self,
        seconds: float,
        tallies: Sequence[Tally] = (),
        turnstile: Turnstile | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        self._backends: list[Processes] = []
        self.environments = 0
        self.busy = False
        self.closing = False
        self.usage = Usage(0.0, 0)
        self._seconds = seconds
        self._tallies = tallies
        self._turnstile = turnstile
        self._inside: Turnstile | None = None
        self._alarm = Alarm(LONG) if alarm is None else alarm
        self._late: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()  # which asks the system for a process id each time
        self._thread = ThreadPoolExecutor(1, "xuance_envs-host")
        self._running: Future[Any] | None = None
        self._listening: tuple[int, ...] = ()
        self._woken: asyncio.Future[bool] | None = None
        self._reason: RefusedError | None = None
        self._fate: str | None = None
        self._hosts = 0
        self._counted = 0
        self._count(1)

    # -- who is in it -----------------------------------------------------------------

    def enter(self, environments: int) -> None:
        """Some more environments are to be in it."""
        self._hosts += 1
        self.environments += environments

    def prepare(self, backend: Processes) -> None:
        """Takes note of what is about to start some; what has ended meanwhile is forgotten."""
        self._backends = [each for each in self._backends if each.workers]
        self._backends.append(backend)

    def leave(self, environments: int) -> None:
        """Environments are not in it any more; with the last of them it has ended, or will."""
        self._hosts -= 1
        self.environments -= environments
        if not self._hosts:
            self._thread.shutdown(wait=False)
            self._count(0)
            for tally in self._tallies:
                tally.cpu += self.usage.cpu
            self.usage = Usage(0.0, 0)

    @property
    def beside(self) -> Processes | None:
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
        for tally in self._tallies:
            tally.add(0, processes - before)

    # -- its end ----------------------------------------------------------------------

    def kill(self) -> None:
        """Ends it; whoever waits for its answer is who notices."""
        for worker in self._workers():
            worker.kill()

    def end_for(self, reason: RefusedError) -> None:
        """Ends it; what is being done in it fails for this reason."""
        self._reason = reason
        self.kill()

    def check(self) -> None:
        """Raises where it has ended with other environments of the session than those asked.

        Raises:
            RefusedError: that is so.
        """
        if self._fate is not None:
            raise RefusedError(
                409,
                "closed",
                "these environments shared a process with others of the session, and it ended "
                f"with those: {self._fate}",
            )

    async def idle(self, seconds: float) -> None:
        """Waits until no command is being done, at most so long."""
        loop = self._loop
        until = loop.time() + seconds
        while self.busy and loop.time() < until:
            await asyncio.sleep(LOOK)

    @property
    def is_running(self) -> bool:
        """Whether its thread is at a command, be it that nobody waits for that any more."""
        return self._running is not None and not self._running.done()

    # -- commands ---------------------------------------------------------------------

    def __enter__(self) -> None:
        """A command begins."""
        self.busy = True

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """A command is over.

        Raises:
            RefusedError: it was ended on purpose.
        """
        self.busy = False
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            self._fate = str(error).partition("\n")[0]
        if isinstance(error, WorkerDiedError):
            if self._reason is not None:
                raise self._reason from None
            if self.closing:
                raise no_session() from None

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Has its thread do something that is no command."""
        return self._thread.submit(act)

    async def run(self, act: Callable[[], T]) -> T:
        """Has its thread do a command, or a part of one."""
        self.stop_listening()
        running = self._thread.submit(act)
        self._running = running
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self.count()

    # -- steps ------------------------------------------------------------------------

    def admit_at_once(self) -> bool:
        """Lets it step if nobody else has to wait for that; :meth:`dismiss` has to follow."""
        if self._turnstile is None:
            return True
        if not self._turnstile.enter_at_once():
            return False
        self._inside = self._turnstile
        return True

    async def admit(self) -> None:
        """Waits until it may step; :meth:`dismiss` has to follow."""
        if self._turnstile is not None:
            await self._turnstile.enter()
            self._inside = self._turnstile

    def dismiss(self) -> None:
        """Lets others step; again, it does nothing."""
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.leave()

    async def answered(self, wakers: tuple[int, ...]) -> bool:
        """Waits until it has answered, or has ended, or should have by now.

        Args:
            wakers: descriptors of which one turns readable then.

        Returns:
            Whether there is something to read.
        """
        loop = self._loop
        woken = self._woken = loop.create_future()
        if not self._listening:
            self._listening = wakers
            for fd in wakers:
                loop.add_reader(fd, self._wake, True)
        self._alarm.set(self)
        try:
            return bool(await woken)
        finally:
            self._alarm.stop(self)
            if self._late is not None:
                self._late.cancel()
                self._late = None
            self._woken = None

    def take_long(self) -> None:
        """Whoever takes long may be waiting, and keeps nobody else from stepping."""
        self.dismiss()
        self._late = self._loop.call_later(self._seconds - LONG, self._wake, False)

    def _wake(self, answered: bool) -> None:
        woken = self._woken
        if woken is None:  # it has ended while nothing was asked of it
            self.stop_listening()
        elif not woken.done():
            woken.set_result(answered)

    def stop_listening(self) -> None:
        """Leaves what it says to a thread, or to nobody."""
        for fd in self._listening:
            self._loop.remove_reader(fd)
        self._listening = ()
