"""Worker processes of a session: their commands, replies, saved states, usage and exit."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import psutil

from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.worker_process import WorkerProcess
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError
from xuance_envs.remote.server.limits import PROCESSES_PER_WORKER, Quota
from xuance_envs.remote.wire.failures import RefusedError, no_session

T = TypeVar("T")

POLL_INTERVAL = 0.005  # while closing, seconds between checks for the end of a running command
SLOW_STEP = 0.01  # seconds after which a running step releases its slot


class Usage(NamedTuple):
    """CPU seconds and bytes of memory of a process and its descendants."""

    cpu: float
    memory: int


def usage_of(pids: Iterable[int]) -> dict[int, Usage]:
    """Return the usage of running descendants of this process, by pid."""
    running = {process.pid: process for process in psutil.Process().children(recursive=True)}
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in running.items():
        with suppress(psutil.Error):
            children[process.ppid()].append(pid)

    def total(pid: int) -> Usage:
        """Return the usage of a process, its ended children and its running descendants."""
        process = running[pid]
        usages: list[Usage] = []
        with suppress(psutil.Error), process.oneshot():
            memory = process.memory_info()
            unshared = memory.rss - getattr(memory, "shared", 0)
            usages.append(Usage(sum(process.cpu_times()[:4]), unshared))
        # In the other order, a child that ended in between would be counted twice.
        usages += map(total, children[pid])
        return Usage(sum(each.cpu for each in usages), sum(each.memory for each in usages))

    return {pid: total(pid) for pid in pids if pid in running}


class StoredState(NamedTuple):
    """Bytes of a stored state, and of the parts of its observation that have no fixed shape."""

    size: int
    object_size: int


class SessionProcess:
    """Workers of one request. The first keeps states, and may run later requests' environments."""

    def __init__(
        self,
        request_timeout: float,
        quota: Quota,
        step_slots: asyncio.Semaphore,
        num_workers: int = 1,
    ) -> None:
        self.num_workers = num_workers
        self._backends: list[ProcessBackend] = []
        self.environments = 0
        self.busy = False
        self.closing = False
        self.usages: dict[int, Usage] = {}  # by pid of the worker
        self.states: dict[int, StoredState] = {}  # by number; they count towards the quota
        self._request_timeout = request_timeout
        self.quota = quota  # of the session
        self._step_slots = step_slots
        self._holds_slot = False
        self._loop = asyncio.get_running_loop()  # cached, because get_running_loop() calls getpid()
        self.thread = ThreadPoolExecutor(1, "xuance_envs-host")
        self._command_future: Future[Any] | None = None  # of the last command of :meth:`run`
        self._watched_fds: Sequence[int] = ()
        self._reply_event: asyncio.Future[int | None] | None = None
        self._kill_reason: RefusedError | None = None
        self.exit_message: str | None = None
        self._counted = 0
        self._count(num_workers)

    def add_backend(self, backend: ProcessBackend) -> None:
        """Register a backend that starts environments in the process; remove ended backends."""
        self._backends = [*(each for each in self._backends if each.workers), backend]
        if self.closing:
            raise no_session()

    def remove_envs(self, environments: int) -> None:
        """Subtract environments; if none are left, release the thread and the quotas."""
        self.environments -= environments
        if not self.environments:
            self.thread.shutdown(wait=False)
            self._count(0)
            self.drop_states(self.states)
            cpu = sum(usage.cpu for usage in self.usages.values())
            for quota in self.quota.chain:
                quota.cpu += cpu
            self.usages = {}

    @property
    def running_backend(self) -> ProcessBackend | None:
        """Backend with running environments; None if the process is not started."""
        return next((backend for backend in self._backends if backend.workers), None)

    def workers(self) -> list[WorkerProcess]:
        found = (driver.worker for each in self._backends for driver in tuple(each.workers))
        return list(dict.fromkeys(found))

    def count(self) -> int:
        """Return the number of running workers, 0 if any has failed; update the quotas."""
        workers = self.workers()
        failed = self.exit_message is not None or not all([worker.alive for worker in workers])
        running = 0 if failed else len(workers)
        self._count(running)
        if not running:
            self.kill()
            self.drop_states(self.states)
        return running

    def _count(self, workers: int) -> None:
        before, self._counted = self._counted, workers
        self.quota.add(processes=PROCESSES_PER_WORKER * (workers - before))

    def kill(self) -> None:
        """Kill the process; a request that waits for its reply raises."""
        for worker in self.workers():
            worker.kill()

    def terminate(self, reason: RefusedError) -> None:
        """Kill the process; the running command fails with this reason."""
        self._kill_reason = reason
        self.kill()

    def add_states(self, states: Mapping[int, StoredState]) -> None:
        self.states.update(states)
        self.quota.add(states=len(states), state_bytes=sum(each.size for each in states.values()))

    def drop_states(self, numbers: Iterable[int]) -> None:
        dropped = [self.states.pop(number) for number in self.states.keys() & numbers]
        self.quota.add(states=-len(dropped), state_bytes=-sum(each.size for each in dropped))

    async def wait_idle(self, seconds: float) -> None:
        until = self._loop.time() + seconds
        while self.busy and self._loop.time() < until:
            await asyncio.sleep(POLL_INTERVAL)

    @property
    def is_running(self) -> bool:
        """Return whether the thread still runs a command, even an abandoned one."""
        return self._command_future is not None and not self._command_future.done()

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.busy = False
        if isinstance(error, WorkerDiedError | WorkerTimeoutError):
            self.exit_message = str(error).partition("\n")[0]
            self.kill()  # the other workers
        if isinstance(error, WorkerDiedError):
            if self._kill_reason is not None:
                raise self._kill_reason from None
            if self.closing:
                raise no_session() from None

    async def run(self, act: Callable[[], T]) -> T:
        self.remove_readers()
        running = self.thread.submit(act)
        self._command_future = running
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self.count()

    async def acquire_slot(self) -> None:
        """Wait for a step slot; after the step, call :meth:`release_slot`."""
        await self._step_slots.acquire()
        self._holds_slot = True

    def release_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._step_slots.release()

    async def wait_for_replies(
        self, receivers: Mapping[int, Callable[[], int]], fds: Sequence[int]
    ) -> int | None:
        """Wait for all replies and return their size; None if a worker ends or is too slow."""
        loop = self._loop
        event = self._reply_event = loop.create_future()
        self._received = dict.fromkeys(receivers, 0)  # bytes of each reply, by descriptor
        if self._watched_fds is not fds:
            self.remove_readers()  # those of another group
            self._watched_fds = fds
            for fd in fds:
                if (receive := receivers.get(fd)) is None:
                    loop.add_reader(fd, self._end_wait, None)
                else:
                    loop.add_reader(fd, self._on_reply, fd, receive)
        self._timer = loop.call_later(SLOW_STEP, self._on_slow_step)
        try:
            received: int | None = await event
            return received
        finally:
            self._timer.cancel()
            self._reply_event = None

    def _on_slow_step(self) -> None:
        """Release the slot of a slow step, so that other sessions can step."""
        self.release_slot()
        self._timer = self._loop.call_later(self._request_timeout - SLOW_STEP, self._end_wait, None)

    def _on_reply(self, fd: int, receive: Callable[[], int]) -> None:
        received = self._received
        received[fd] = 0 if self._reply_event is None else receive()
        if all(received.values()):
            self._end_wait(sum(received.values()))
        elif not received[fd]:  # the worker has ended
            self._end_wait(None)

    def _end_wait(self, received: int | None) -> None:
        event = self._reply_event
        if event is None:  # a worker ended while no command was running
            self.remove_readers()
        elif not event.done():
            event.set_result(received)

    def remove_readers(self) -> None:
        """Remove the descriptors from the event loop, so that the thread can read them."""
        for fd in self._watched_fds:
            self._loop.remove_reader(fd)
        self._watched_fds = ()
