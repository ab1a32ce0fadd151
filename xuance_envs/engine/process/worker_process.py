"""Main process's side of a worker process: startup, pipes and end.

A worker does not import its parent's ``__main__``, and ends when its parent ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import process
from multiprocessing.context import BaseContext
from typing import Any

from xuance_envs.engine.process import bootstrap
from xuance_envs.engine.process.channel import Channel
from xuance_envs.engine.process.common_step import CommonStep
from xuance_envs.engine.process.settings import PassedFd, WorkerArguments
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.spawning import (
    deferred_interrupt,
    hidden_main,
    make_two_pipes,
    reserved_descriptors,
)
from xuance_envs.engine.process.worker_diagnostics import WorkerDiagnostics
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.library_threads import limited_in_fork

KILL_TIMEOUT = 1.0  # seconds between terminating a process and killing it

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
        env_fns: Sequence[Callable[..., Any]] | None,
    ) -> None:
        self.failed = self.may_run = False
        self.index = index
        self.num_groups = 1
        self._released = False
        self._guarded = settings.guarded and system.HAS_GUARDIANS
        self.diagnostics = WorkerDiagnostics(settings.memory.fd, index)
        self.diagnostics.clear()
        (their_requests, requests), (replies, their_replies) = make_two_pipes()
        own_fds = {requests, replies}
        try:
            worker_settings = WorkerArguments(
                PassedFd(their_requests),
                PassedFd(their_replies),
                PassedFd(settings.memory.fd),
                reserved=settings.memory.reserved,
                index=index,
                threads=settings.threads,
                spin=settings.spin,
                guarded=self._guarded,
                common=None if settings.common is None else settings.common.settings_of(index),
                env_fns=env_fns,
            )
            self.process: Any = settings.context.Process(  # type: ignore[attr-defined]
                target=bootstrap.start, args=(worker_settings,), name=name, daemon=True
            )
            with _fd_lock:
                _tracked_fds.update(own_fds)
                self._start(settings)
                self._pidfd = system.open_end_watch(self.process.pid)
                if self._pidfd is not None:
                    own_fds.add(self._pidfd)
                    _tracked_fds.add(self._pidfd)
        except BaseException:
            _untrack_fds(own_fds)
            for fd in own_fds:
                system.close(fd)
            raise
        finally:
            system.close(their_requests)
            system.close(their_replies)
        self.pid: int = self.process.pid
        self._owner = os.getpid()
        # A pidfd reports the end at once; the process's children may hold the sentinel open.
        self.peer: int = self.process.sentinel if self._pidfd is None else self._pidfd
        expect_ready = index > 0 or settings.expect_first_ready
        self.channel = Channel(requests, replies, self.peer, settings.main_spin, expect_ready)
        self._tracked_fds = own_fds

    def _start(self, settings: StartSettings) -> None:
        forked = settings.context.get_start_method() == "fork"
        with limited_in_fork(settings.threads) if forked else _deferred_reaping(), hidden_main():
            self.process.start()
        _tracked_processes.add(self.process)

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
            _untrack_fds(self._tracked_fds)
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

    @property
    def is_owner(self) -> bool:
        """Return whether this process started the worker; False in a fork of that process."""
        return self._owner == os.getpid()


@contextmanager
def worker_start(method: str) -> Iterator[None]:
    """Prepare for the start of a worker process, and defer Ctrl-C until the context ends."""
    with deferred_interrupt():
        if method != "fork":
            with _fd_lock, hidden_main(), reserved_descriptors():
                system.start_helpers(method)
        with system.blocked_sigint(), reserved_descriptors():
            yield


@contextmanager
def _deferred_reaping() -> Iterator[None]:
    """Delay the reaping of workers released in this context, such as by garbage collection."""
    global _starting
    _starting = True
    try:
        yield
    finally:
        _starting = False
        while _unreaped:
            _unreaped.pop().reap()


def _untrack_fds(fds: set[int]) -> None:
    with _fd_lock:
        _tracked_fds.difference_update(fds)
