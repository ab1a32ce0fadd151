"""Main process's side of a worker process: startup, pipes and end.

A worker does not import its parent's ``__main__``, and ends when its parent ends.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import process
from multiprocessing.context import BaseContext
from typing import Any

from xuance_envs.engine.process.bootstrap import PassedFds, start
from xuance_envs.engine.process.channel import Channel
from xuance_envs.engine.process.common_step import CommonStep
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_diagnostics import WorkerDiagnostics
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.interrupts import deferred_interrupt
from xuance_envs.engine.system.library_threads import limited_in_fork

KILL_TIMEOUT = 1.0  # seconds between terminating a process and killing it
SPARE_DESCRIPTORS = 16  # number of free descriptors that suffice for starting a process

# Held while descriptors are opened or closed. Reentrant, because garbage collection of a vectorized
# environment may close descriptors at any time.
_fd_lock = threading.RLock()

# Workers released during a worker's start. The forkserver reports no ended process until it has
# received the request to start one.
_unreaped: list[WorkerProcess] = []
_starting = False

# The main process's ends of all workers' pipes, and the workers.
_tracked_fds: set[int] = set()
_tracked_processes: weakref.WeakSet[Any] = weakref.WeakSet()


def _drop_workers_after_fork() -> None:
    """Remove all workers from a forked process."""
    global _fd_lock, _starting
    _fd_lock = threading.RLock()
    _starting = False
    _unreaped.clear()
    for fd in _tracked_fds:  # else workers would not detect the main process's end
        with suppress(OSError):
            os.close(fd)
    _tracked_fds.clear()
    # Else multiprocessing would end them at this process's exit. No public function removes them.
    for worker in list(_tracked_processes):
        process._children.discard(worker)  # type: ignore[attr-defined]


system.after_fork(_drop_workers_after_fork)


@dataclass(frozen=True)
class StartSettings:
    context: BaseContext
    memory: SharedMemory
    threads: int | None
    spin: float
    main_spin: float
    timeout: float | None
    start_timeout: float | None
    guarded: bool = False
    expect_first_ready: bool = False
    common: CommonStep | None = None


class WorkerProcess:
    def __init__(
        self,
        settings: StartSettings,
        index: int,
        name: str,
        env_fns: Sequence[Callable[..., Any]],
    ) -> None:
        self.failed = self.may_run = False
        self.index = index
        self.num_groups = 1
        self._released = False
        self._guarded = settings.guarded and system.HAS_GUARDIANS
        self.diagnostics = WorkerDiagnostics(settings.memory.fd, index)
        self.diagnostics.clear()
        common = settings.common
        counters, codes = ((), (0, 0)) if common is None else common.share_of(index)
        own_fds, their_fds = set[int](), set[int]()
        try:
            their_requests, requests = system.open_pipe()
            their_fds.add(their_requests)
            own_fds.add(requests)
            replies, their_replies = system.open_pipe()
            their_fds.add(their_replies)
            own_fds.add(replies)
            fds = PassedFds((settings.memory.fd, their_requests, their_replies, *counters))
            options = settings.threads, settings.spin, self._guarded, env_fns
            self.process: Any = settings.context.Process(  # type: ignore[attr-defined]
                target=start, args=(fds, codes, index, *options), name=name, daemon=True
            )
            forked = settings.context.get_start_method() == "fork"
            with _fd_lock:
                _tracked_fds.update(own_fds)
                with limited_in_fork(settings.threads) if forked else _deferred_reaping():
                    self.process.start()
                _tracked_processes.add(self.process)
                self._pidfd = system.open_end_watch(self.process.pid)
                if self._pidfd is not None:
                    own_fds.add(self._pidfd)
                    _tracked_fds.add(self._pidfd)
        except BaseException:
            with _fd_lock:
                _tracked_fds.difference_update(own_fds)
            their_fds |= own_fds
            raise
        finally:
            for fd in their_fds:
                system.close(fd)
        self.pid: int = self.process.pid
        self.owner = os.getpid()  # differs from the pid of this process's forks
        # A pidfd reports the end at once; the process's children may hold the sentinel open.
        self.peer: int = self.process.sentinel if self._pidfd is None else self._pidfd
        expect_ready = index > 0 or settings.expect_first_ready
        self.channel = Channel(requests, replies, self.peer, settings.main_spin, expect_ready)
        self._tracked_fds = own_fds

    def join(self) -> None:
        """Reap the process, which has ended."""
        # join waits for the sentinel to close, but children of the process may hold it open.
        if self.process.exitcode is None:
            self.process.join(KILL_TIMEOUT)

    def abort(self) -> None:
        """End the process so that it writes a crash report."""
        with suppress(OSError):
            system.abort(self.pid)
        self.process.join(KILL_TIMEOUT)
        self.kill()

    def terminate(self) -> None:
        """Terminate the process, and its process group unless a guardian ends all descendants."""
        if not self._guarded:
            with suppress(OSError):  # it does not have its own group yet
                system.terminate_group(self.pid)
                return
        self.process.terminate()

    def kill(self) -> None:
        """Kill the process, and its process group or, with a guardian, all its descendants."""
        if not self._released:  # afterwards the pid may be reused
            with suppress(OSError):
                if self._guarded:
                    os.kill(self.pid, system.KILL_SIGNAL)
                else:
                    system.kill_group(self.pid)

    @property
    def alive(self) -> bool:
        if self._released:
            return False
        if self._pidfd is None:
            return bool(self.process.is_alive())
        poll = system.poll()
        poll.register(self._pidfd, system.POLLIN)
        return not poll.poll(0)

    def release(self) -> None:
        """Free the resources of an ended process; repeated calls do nothing."""
        if self._released:
            return
        self._released = True
        with _fd_lock:
            _tracked_fds.difference_update(self._tracked_fds)
            self.channel.close()
            if self._pidfd is not None:
                system.close_end_watch(self._pidfd)
            if _starting:
                _unreaped.append(self)
            else:
                self.reap()

    def reap(self) -> None:
        """Free the resources that multiprocessing holds for the ended process."""
        self.join()
        try:
            self.process.close()
        except ValueError:  # the process cannot be killed, as in uninterruptible sleep
            self.may_run = True


@contextmanager
def worker_start(method: str) -> Iterator[None]:
    """Prepare for the start of a worker process, and defer Ctrl-C until the context ends."""
    with deferred_interrupt():
        if method != "fork":
            with _fd_lock, _hidden_main(), _reserved_descriptors():
                system.start_helpers(method)
        with system.blocked_sigint(), _reserved_descriptors():
            yield


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep multiprocessing from importing ``__main__`` in a new process."""
    main = sys.modules["__main__"]
    names: dict[str, Any] = vars(main)
    hidden = {name: names.pop(name) for name in names.keys() & {"__file__", "__spec__"}}
    main.__spec__ = None
    try:
        yield
    finally:
        names.update(hidden)


@contextmanager
def _reserved_descriptors() -> Iterator[None]:
    """Check that enough descriptors are free for a start, and keep descriptors 0 to 2 open."""
    # Without free ones, multiprocessing may leak some. If 0 to 2 are closed, a worker would use one
    # of our pipes as its standard output.
    reserved: list[int] = []
    try:
        for _ in range(SPARE_DESCRIPTORS):
            reserved.append(os.open(os.devnull, os.O_RDWR))
        for fd in reserved:
            if fd > 2:
                os.close(fd)
            else:
                os.set_inheritable(fd, True)
        reserved = [fd for fd in reserved if fd <= 2]
        yield
    finally:
        for fd in reserved:
            os.close(fd)


@contextmanager
def _deferred_reaping() -> Iterator[None]:
    """Delay the reaping of workers released during a start, such as by garbage collection."""
    global _starting
    _starting = True
    try:
        with _hidden_main():
            yield
    finally:
        _starting = False
        while _unreaped:
            _unreaped.pop().reap()
