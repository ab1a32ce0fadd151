"""Driver of asynchronous environments; all groups share one thread and its event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import Timeouts
from xuance_envs.engine.group.async_group import AsyncGroup
from xuance_envs.engine.group.awaited_calls import all_of, frames_of, running_tasks
from xuance_envs.engine.serialization import as_exception
from xuance_envs.engine.thread.thread_driver import END, ThreadDriver, WakeUps
from xuance_envs.errors import EnvError, WorkerTimeoutError
from xuance_envs.event_loops import EventLoop


class GroupLoop(EventLoop):
    """Event loop that serves its groups; it may divide them into groups of one environment."""

    def __init__(
        self, thread: threading.Thread, timeouts: Timeouts, wake_ups: WakeUps, divides: bool
    ) -> None:
        super().__init__()
        self.thread = thread
        self.timeouts, self.wake_ups = timeouts, wake_ups
        wake_ups.wake_loop = self.wake
        self._divides = divides
        self.submitted: list[LoopDriver] = []  # drivers that got a request since the last wake
        self._inbox: deque[LoopDriver] = deque()
        self._to_build: deque[LoopDriver] = deque()
        self.drivers: set[ThreadDriver] = set()

    @override
    def serve(self) -> None:
        # Environments are created before the loop runs, as in every other backend.
        while self._to_build:
            self._to_build.popleft().build()
        super().serve()

    def add(
        self,
        worker: ThreadDriver,
        rest: Sequence[tuple[int, int]],
        submit_build: Callable[[ThreadDriver], None],
    ) -> list[ThreadDriver]:
        """Move a thread's group to the loop, and create groups for ``rest``; return all drivers."""
        is_new = not self.drivers
        group: Any = worker.host.group
        ranges = self._ranges([(worker.lo, worker.hi)])
        groups = group.divide() if self._divides else [group]
        moved = [LoopDriver(self, *at, part) for at, part in zip(ranges, groups, strict=True)]
        new = [LoopDriver(self, *at) for at in self._ranges(rest)]
        for driver in new:
            submit_build(driver)
        self._to_build.extend(new)
        worker.end(*[self.serve] if is_new else ())
        self.wake_ups.wake_all()
        return [*moved, *new]

    def _ranges(self, split: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return [(i, i + 1) for lo, hi in split for i in range(lo, hi)] if self._divides else split

    def wake(self) -> None:
        """Begin all requests that were submitted."""
        if self.submitted:
            self._inbox.extend(self.submitted)
            self.post(self._begin_requests)
            self.submitted = []

    def _begin_requests(self) -> None:
        while self._inbox:
            self._inbox.popleft().begin()

    def remove(self, driver: ThreadDriver) -> None:
        """Remove a driver; stop the loop after the last one."""
        self.drivers.discard(driver)
        if not self.drivers:
            self.stop()


class LoopDriver(ThreadDriver):
    def __init__(self, loop: GroupLoop, lo: int, hi: int, group: AsyncGroup | None = None) -> None:
        super().__init__(lo, hi, loop.timeouts, loop.wake_ups)
        self.thread = loop.thread
        self._loop = loop
        self._begun: Any = self._request
        self._task: asyncio.Task[Any] | None = None
        loop.drivers.add(self)
        if group is not None:
            self.host.group = group
            group.move_to(loop)
            self._answer(self._request, group.describe(), None)

    # -- in the loop's thread ---------------------------------------------------------

    def build(self) -> None:
        """Create the environments, before the loop runs."""
        request = self._request
        if request[0] == END:
            return
        self._begun = request
        value, failure = None, None
        try:
            value = self.host.execute(*request)
            if isinstance(self.host.group, AsyncGroup) and self.host.group.is_asynchronous:
                self.host.group.move_to(self._loop)
        except BaseException as error:
            failure = as_exception(error)
        self._answer(request, value, failure)

    def begin(self) -> None:
        """Begin to serve the last request, unless this was done before."""
        request = self._request
        if request is not self._begun:
            if self._task is not None:
                self._task.cancel()
            self._begun = request
            serve = self._close() if request[0] == END else self._serve_request(request)
            self._task = self._loop.loop.create_task(serve)

    async def _serve_request(self, request: Any) -> None:
        command, arguments = request
        value, failure = None, None
        try:
            group: Any = self.host.group
            if calls := group.prepare(command, arguments):
                await all_of(calls)
            if command == "step":
                value = group.step(*arguments)
            elif isawaitable(value := self.host.execute(command, arguments)):
                value = await value
        except BaseException as error:
            failure = as_exception(error)
        if request is self._begun:
            self._task = None
            self._answer(request, value, failure)

    async def _close(self) -> None:
        group = getattr(self.host, "group", None)
        if isinstance(group, AsyncGroup) and group.runs_on_loop:
            try:
                if isawaitable(closed := group.close()):
                    await closed
            except EnvError as error:
                print(error, file=sys.stderr)
        else:  # its creation was not completed
            self.host.close()
        self._loop.remove(self)

    # -- in the main thread -----------------------------------------------------------

    @override
    def placed(self, on_loop: Any) -> list[Any]:
        if self.host.group.is_asynchronous:
            return [self]
        driver = ThreadDriver(self.lo, self.hi, self._timeouts, self._wake_ups)
        driver.host = self.host
        driver.start()
        self._loop.remove(self)
        return [driver]

    @override
    def _announce(self) -> None:
        self._loop.submitted.append(self)

    @override
    def _timeout_error(self) -> WorkerTimeoutError:
        blocking = asyncio.current_task(self._loop.loop)
        for driver in self._loop.drivers:
            if isinstance(driver, LoopDriver) and driver is not self:
                driver._deadline = self._deadline
                if blocking is not None and blocking in driver.running.values():
                    return driver._timeout_error()
        return super()._timeout_error()

    @property
    def running(self) -> dict[int, asyncio.Task[Any]]:
        """Running tasks by the place of their environment; any thread may read them."""
        group = getattr(self.host, "group", None)
        return running_tasks(group.calls) if isinstance(group, AsyncGroup) else {}

    @override
    def _hang_details(self) -> str:
        task = next(iter(self.running.values()), None)
        if task is None or task is asyncio.current_task(self._loop.loop):
            return super()._hang_details()
        stack = [traceback.format_stack(frame, 1)[0] for frame in frames_of(task)]
        self._loop.post(task.cancel)
        return "The coroutine was cancelled. It was waiting in:\n" + "".join(stack)

    @override
    def _active_env(self) -> int | None:
        """Return the environment that blocks the loop, or the first that did not answer."""
        blocking, running = asyncio.current_task(self._loop.loop), self.running
        place = next((i for i, task in running.items() if task is blocking), None)
        place = next(iter(running), None) if place is None else place
        return None if place is None else self.lo + place
