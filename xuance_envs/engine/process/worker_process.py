"""A worker process, seen from the process that started it: its start, its pipes, and its end.

It does not import the ``__main__`` of the one that started it, and does not outlive it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, process, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from xuance_envs.engine.library_threads import limited_in_fork
from xuance_envs.engine.process import bootstrap, guardian
from xuance_envs.engine.process.channel import Channel
from xuance_envs.engine.process.settings import PassedFd, WorkerSettings
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.spawning import (
    blocked_sigint,
    deferred_interrupt,
    hidden_main,
    make_two_pipes,
    pidfd_of,
    reserved_descriptors,
)
from xuance_envs.engine.process.worker_diagnostics import WorkerDiagnostics

__all__ = ["KILL_TIMEOUT", "StartSettings", "WorkerProcess", "start_worker"]

KILL_TIMEOUT = 1.0
"""Seconds between asking a process to end, the hard way, and killing it."""

# Also held while descriptors come and go; a collected vector environment lets go of some at any
# moment, hence reentrant.
_fd_lock = threading.RLock()

# The callers' ends of all workers' pipes, and the workers.
_tracked_fds: set[int] = set()
_tracked_processes: weakref.WeakSet[Any] = weakref.WeakSet()


def _drop_workers_after_fork() -> None:
    """Makes a forked process one that has no workers.

    It inherits the callers' ends of their pipes, and as long as it held them, nobody would
    notice the end of this process. And multiprocessing would end the workers when it exits, unless
    they are taken out of a set for which it has no public name.
    """
    global _fd_lock
    _fd_lock = threading.RLock()
    for fd in _tracked_fds:
        with suppress(OSError):
            os.close(fd)
    _tracked_fds.clear()
    for worker in list(_tracked_processes):
        process._children.discard(worker)  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_workers_after_fork)


@dataclass(frozen=True)
class StartSettings:
    """How the worker processes of one vector environment start."""

    context: BaseContext
    memory: SharedMemory
    threads: int | None
    spin: float
    main_spin: float
    timeout: float | None
    start_timeout: float | None
    guarded: bool = False
    expect_first_ready: bool = False


class WorkerProcess:
    """The process of a worker, and the pipes to it."""

    def __init__(
        self,
        settings: StartSettings,
        index: int,
        name: str,
        env_fns: Sequence[Callable[..., Any]] | None,
    ) -> None:
        self.failed = False
        self.index = index
        self.num_groups = 1
        self._released = False
        self._guarded = settings.guarded and guardian.SUPPORTED
        self.diagnostics = WorkerDiagnostics(settings.memory.fd, index)
        self.diagnostics.clear()
        (their_requests, requests), (replies, their_replies) = make_two_pipes()
        own_fds = {requests, replies}
        try:
            worker_settings = WorkerSettings(
                PassedFd(their_requests),
                PassedFd(their_replies),
                PassedFd(settings.memory.fd),
                reserved=settings.memory.reserved,
                index=index,
                threads=settings.threads,
                spin=settings.spin,
                guarded=self._guarded,
                env_fns=env_fns,
            )
            self.process: Any = settings.context.Process(  # type: ignore[attr-defined]
                target=bootstrap.start,
                args=(worker_settings,),
                name=name,
                daemon=True,
            )
            with _fd_lock:
                _tracked_fds.update(own_fds)
                self._start(settings)
                self._pidfd = pidfd_of(self.process.pid)
                if self._pidfd is not None:
                    own_fds.add(self._pidfd)
                    _tracked_fds.add(self._pidfd)
        except BaseException:
            _untrack_fds(own_fds)
            for fd in own_fds:
                os.close(fd)
            raise
        finally:
            os.close(their_requests)
            os.close(their_replies)
        self.pid: int = self.process.pid
        self._owner = os.getpid()
        # The process's end shows on the pidfd at once, on a pipe only when nobody else holds it.
        self.peer: int = self.process.sentinel if self._pidfd is None else self._pidfd
        expect_ready = index > 0 or settings.expect_first_ready
        self.channel = Channel(requests, replies, self.peer, settings.main_spin, expect_ready)
        self._tracked_fds = own_fds

    def _start(self, settings: StartSettings) -> None:
        forked = settings.context.get_start_method() == "fork"
        with limited_in_fork(settings.threads) if forked else hidden_main():
            self.process.start()
        _tracked_processes.add(self.process)

    def join(self) -> None:
        """Waits for the process, which has ended."""
        # Its children may hold open what join looks at first.
        if self.process.exitcode is None:
            self.process.join(KILL_TIMEOUT)

    def abort(self) -> None:
        """Ends it in such a way that it says where it was."""
        with suppress(OSError, ValueError, AttributeError, ImportError):
            import resource

            # Only the report is wanted, not a file with all of its memory.
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
            os.kill(self.pid, signal.SIGABRT)
        self.process.join(KILL_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """Ends it at once, and with it what its environments started, where it is guarded."""
        if not self._released:  # then its number may be another one's
            with suppress(OSError):
                os.kill(self.pid, guardian.KILL_SIGNAL if self._guarded else signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        if self._released:
            return False
        if self._pidfd is None:
            return bool(self.process.is_alive())
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def release(self) -> None:
        """Frees what is held for a process that has ended; again, it does nothing."""
        if self._released:
            return
        self._released = True
        with _fd_lock:
            _untrack_fds(self._tracked_fds)
            self.channel.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
            self.join()
            with suppress(ValueError):  # it cannot even be killed, which the kernel alone can mend
                self.process.close()

    @property
    def is_owner(self) -> bool:
        """Whether this process started it; not so in a process forked since."""
        return self._owner == os.getpid()


def start_worker(
    settings: StartSettings,
    index: int,
    name: str,
    env_fns: Sequence[Callable[..., Any]] | None,
    started: Callable[[WorkerProcess], None],
) -> None:
    """Starts a worker process, and hands it over; no interrupt comes between the two."""
    method = settings.context.get_start_method()
    with deferred_interrupt():
        if method != "fork":
            # Whatever these start would inherit the mask set below, or take it away again.
            with _fd_lock, hidden_main(), reserved_descriptors():
                if method == "forkserver":
                    forkserver.ensure_running()
                resource_tracker.ensure_running()
        with blocked_sigint(), reserved_descriptors():
            started(WorkerProcess(settings, index, name, env_fns))


def _untrack_fds(fds: set[int]) -> None:
    with _fd_lock:
        _tracked_fds.difference_update(fds)
