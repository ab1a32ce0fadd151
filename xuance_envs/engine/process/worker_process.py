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
from xuance_envs.engine.process.black_box import BlackBox
from xuance_envs.engine.process.doorbell import Channel
from xuance_envs.engine.process.settings import PassedFd, WorkerSettings
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.start import (
    blocked_sigint,
    deferred_interrupt,
    hidden_main,
    pidfd_of,
    room_for_descriptors,
    two_pipes,
)

__all__ = ["FORCE", "StartSettings", "WorkerProcess", "start_worker"]

FORCE = 1.0
"""Seconds between asking a process to end, the hard way, and killing it."""

# Also held while descriptors come and go; a collected vector environment lets go of some at any
# moment, hence reentrant.
_changing = threading.RLock()

# The callers' ends of all workers' pipes, and the workers.
_own_fds: set[int] = set()
_own_processes: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown() -> None:
    """Makes a forked process one that has no workers.

    It inherits the callers' ends of their pipes, and as long as it held them, nobody would
    notice the end of this process. And multiprocessing would end the workers when it exits, unless
    they are taken out of a set for which it has no public name.
    """
    global _changing
    _changing = threading.RLock()
    for fd in _own_fds:
        with suppress(OSError):
            os.close(fd)
    _own_fds.clear()
    for worker in list(_own_processes):
        process._children.discard(worker)  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


@dataclass(frozen=True)
class StartSettings:
    """How the worker processes of one vector environment start.

    Attributes:
        context: what starts them.
        memory: the memory the step's arrays will be on.
        threads: how many threads numeric libraries may use in them; None leaves them be.
        spin: how long each may spin while it waits for a request, in seconds.
        own_spin: how long this process may spin while it waits for a reply.
        timeout: how long each may take to answer, in seconds; None for ever.
        start_timeout: how long each may take to make its environments, likewise.
        guarded: whether all that their environments start ends with them, where the system can.
        all_late: whether this process asks for the first reply, too, when it has mostly come.
    """

    context: BaseContext
    memory: SharedMemory
    threads: int | None
    spin: float
    own_spin: float
    timeout: float | None
    start_timeout: float | None
    guarded: bool = False
    all_late: bool = False


class WorkerProcess:
    """The process of a worker, and the pipes to it.

    Args:
        settings: how to start it.
        index: which worker of the vector environment it is.
        name: what the system shows it as.
        env_fns: what makes its environments, if it can inherit them.

    Attributes:
        process: as multiprocessing has it.
        pid (int): its id.
        channel (Channel): the caller's side of the pipes.
        black_box (BlackBox): what it says about itself.
        peer (int): a descriptor that turns readable when it ends.
        index (int): which worker of the vector environment it is.
        groups (int): how many groups it has that have not left it.
        failed (bool): whether it ended by itself or hung, and its caller has been told so.
    """

    def __init__(
        self,
        settings: StartSettings,
        index: int,
        name: str,
        env_fns: Sequence[Callable[..., Any]] | None,
    ) -> None:
        self.failed = False
        self.index = index
        self.groups = 1
        self._released = False
        self._guarded = settings.guarded and guardian.AVAILABLE
        self.black_box = BlackBox(settings.memory.fd, index)
        self.black_box.clear()
        (their_requests, requests), (replies, their_replies) = two_pipes()
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
            with _changing:
                _own_fds.update(own_fds)
                self._start(settings)
                self._pidfd = pidfd_of(self.process.pid)
                if self._pidfd is not None:
                    own_fds.add(self._pidfd)
                    _own_fds.add(self._pidfd)
        except BaseException:
            _forget(own_fds)
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
        late = index > 0 or settings.all_late
        self.channel = Channel(requests, replies, self.peer, settings.own_spin, late)
        self._own_fds = own_fds

    def _start(self, settings: StartSettings) -> None:
        forked = settings.context.get_start_method() == "fork"
        with limited_in_fork(settings.threads) if forked else hidden_main():
            self.process.start()
        _own_processes.add(self.process)

    def join(self) -> None:
        """Waits for the process, which has ended."""
        # Its children may hold open what join looks at first.
        if self.process.exitcode is None:
            self.process.join(FORCE)

    def abort(self) -> None:
        """Ends it in such a way that it says where it was."""
        with suppress(OSError, ValueError, AttributeError, ImportError):
            import resource

            # Only the report is wanted, not a file with all of its memory.
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
            os.kill(self.pid, signal.SIGABRT)
        self.process.join(FORCE)
        self.kill()

    def kill(self) -> None:
        """Ends it at once, and with it what its environments started, where it is guarded."""
        if not self._released:  # then its number may be another one's
            with suppress(OSError):
                os.kill(self.pid, guardian.KILL if self._guarded else signal.SIGKILL)

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
        with _changing:
            _forget(self._own_fds)
            self.channel.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
            self.join()
            with suppress(ValueError):  # it cannot even be killed, which the kernel alone can mend
                self.process.close()

    @property
    def owned(self) -> bool:
        """Whether this process started it; not so in a process forked since."""
        return self._owner == os.getpid()


def start_worker(
    settings: StartSettings,
    index: int,
    name: str,
    env_fns: Sequence[Callable[..., Any]] | None,
    started: Callable[[WorkerProcess], None],
) -> None:
    """Starts a worker process, and hands it over; no interrupt comes between the two.

    Args:
        settings: how to start it.
        index: which worker of the vector environment it is.
        name: what the system shows it as.
        env_fns: what makes its environments, if it can inherit them.
        started: what takes it.

    Raises:
        OSError: a limit on processes or descriptors was met.
    """
    method = settings.context.get_start_method()
    with deferred_interrupt():
        if method != "fork":
            # Whatever these start would inherit the mask set below, or take it away again.
            with _changing, hidden_main(), room_for_descriptors():
                if method == "forkserver":
                    forkserver.ensure_running()
                resource_tracker.ensure_running()
        with blocked_sigint(), room_for_descriptors():
            started(WorkerProcess(settings, index, name, env_fns))


def _forget(fds: set[int]) -> None:
    with _changing:
        _own_fds.difference_update(fds)
