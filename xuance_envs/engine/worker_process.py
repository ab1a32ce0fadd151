"""A worker process, seen from the process that started it.

What it guarantees:

- A request is answered, or the end of the process is noticed at once, whatever it was doing.
- After :func:`end_all` the processes are gone: by themselves if they can, by force if they
  must, in bounded time.
- A process does not import the ``__main__`` of the one that started it, and does not outlive it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any

from xuance_envs.engine import bootstrap
from xuance_envs.engine.bootstrap import PassedFd, WorkerSettings
from xuance_envs.engine.doorbell import Channel, PeerGoneError, Reply, Request, frame
from xuance_envs.engine.env_group import DONE, ENDED, Outcome
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.errors import WorkerDiedError

__all__ = ["WorkerProcess", "end_all"]

PATIENCE = 5.0
"""Seconds the workers have to close their environments before they are terminated."""

FORCE = 1.0
"""Seconds between terminating a worker and killing it."""

_STEP = frame(Request.STEP)
_OUTCOMES: dict[int, Outcome] = {Reply.DONE: DONE, Reply.ENDED: ENDED}

_starting = threading.Lock()

# The callers' ends of all workers' pipes: a forked worker inherits them and has to close them,
# or nobody would notice the end of this process.
_own_fds: set[int] = set()


class WorkerProcess:
    """One group of environments in a process of its own; a driver of it.

    Args:
        context: how to start it.
        lo: index of its first environment.
        hi: index after its last environment.
        memory: descriptor of the memory the step's arrays will be on.
        threads: how many threads numeric libraries may use in it; None leaves them be.
        spin: how long it may spin while it waits for a request, in seconds.
        own_spin: how long this process may spin while it waits for a reply.
        env_fns: what makes its environments, if it can inherit them.
    """

    def __init__(
        self,
        context: BaseContext,
        lo: int,
        hi: int,
        memory: int,
        *,
        threads: int | None,
        spin: float,
        own_spin: float,
        env_fns: Sequence[Callable[..., Any]] | None,
    ) -> None:
        self.lo = lo
        self.hi = hi
        self.inherits = env_fns is not None
        self._command = "start"
        their_requests, requests = os.pipe()
        replies, their_replies = os.pipe()
        own_fds = {requests, replies}
        try:
            settings = WorkerSettings(
                PassedFd(their_requests),
                PassedFd(their_replies),
                PassedFd(memory),
                strangers=tuple(_own_fds | own_fds) if env_fns is not None else (),
                threads=threads,
                spin=spin,
                env_fns=env_fns,
            )
            self.process: Any = context.Process(  # type: ignore[attr-defined]
                target=bootstrap.start,
                args=(settings,),
                name=f"xuance_envs-{lo}-{hi - 1}",
                daemon=True,
            )
            with _starting, _hidden_main():
                if context.get_start_method() == "forkserver":
                    # All it ever forks would inherit the mask set below.
                    forkserver.ensure_running()
                with _blocked_sigint():
                    self.process.start()
            self.pid: int = self.process.pid
            self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except BaseException:
            for fd in own_fds:
                os.close(fd)
            raise
        finally:
            os.close(their_requests)
            os.close(their_replies)
        # The process's end shows on the pidfd at once, on a pipe only when nobody else holds it.
        self.peer: int = self.process.sentinel if self._pidfd is None else self._pidfd
        self._channel = Channel(requests, replies, self.peer, own_spin)
        self._own_fds = own_fds | ({self._pidfd} if self._pidfd is not None else set())
        _own_fds.update(self._own_fds)

    @property
    def tag(self) -> int:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._channel.tag

    def ask_step(self, tag: int, actions: list[list[Any]] | None) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        if actions is None:
            self._command = "step"
            # A worker that is gone is noticed, and reported, when its result is asked for.
            try:
                self._channel.ask(_STEP, tag)
            except PeerGoneError:
                return
        else:
            self.ask(tag, "step", actions)

    def ask(self, tag: int, command: str, *arguments: Any) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        message = frame(Request.CALL, dumps_for_worker((command, arguments)))
        self._command = command
        with suppress(PeerGoneError):
            self._channel.ask(message, tag)

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        try:
            code, payload = self._channel.answer(deadline)
        except PeerGoneError:
            raise self._death() from None
        if (outcome := _OUTCOMES.get(code)) is not None:
            return outcome
        if code == Reply.RESULT:
            return loads(payload)
        raise unpack_error(payload)

    def thaw(self, frozen: bytes) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return loads(frozen)

    def _death(self) -> WorkerDiedError:
        self.process.join(FORCE)
        envs = range(self.lo, self.hi)
        return WorkerDiedError(envs, self.pid, self.process.exitcode, self._command)

    # -- the end ----------------------------------------------------------------------

    def ask_to_close(self) -> None:
        """Tells the process to end, once it is done with what it is doing."""
        self._channel.ask_to_close()

    def drain(self) -> None:
        """Makes room in the pipe, in case the process still wants to reply."""
        self._channel.drain()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return bool(self.process.is_alive())

    @property
    def replies(self) -> int:
        """The descriptor its replies come through."""
        return self._channel.replies

    def release(self) -> None:
        """Frees what is held for a process that has ended."""
        _own_fds.difference_update(self._own_fds)
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self.process.close()


def end_all(workers: list[WorkerProcess], patience: float = PATIENCE) -> None:
    """Ends worker processes: asks them to, then terminates, then kills those that are left.

    Args:
        workers: the processes; the list is empty afterwards.
        patience: seconds they have to close their environments.
    """
    for worker in workers:
        worker.ask_to_close()
    _wait_for_end(workers, patience)
    for worker in workers:
        if worker.alive:
            worker.process.terminate()
    _wait_for_end(workers, FORCE)
    for worker in workers:
        if worker.alive:
            worker.process.kill()
    while workers:
        workers[-1].process.join()
        workers.pop().release()


def _wait_for_end(workers: Sequence[WorkerProcess], seconds: float) -> None:
    """Waits until the processes have ended, or so many seconds; lets them reply meanwhile."""
    deadline = monotonic() + seconds
    poll = select.poll()
    running = {}
    for worker in workers:
        if worker.alive:
            running[worker.peer] = worker
            poll.register(worker.peer, select.POLLIN)
            poll.register(worker.replies, select.POLLIN)
    talking = {worker.replies: worker for worker in running.values()}
    while running and (left := deadline - monotonic()) > 0:
        for fd, event in poll.poll(left * 1e3):
            if fd in running:
                del running[fd]
                poll.unregister(fd)
            elif event & select.POLLIN:
                talking[fd].drain()
            else:  # it has closed its end, which would keep the poll awake
                poll.unregister(fd)


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Keeps multiprocessing from importing ``__main__`` in the process being started."""
    main = sys.modules["__main__"]
    names: dict[str, Any] = vars(main)
    hidden: dict[str, Any] = {
        name: names.pop(name) for name in ("__file__", "__spec__") if name in names
    }
    main.__spec__ = None
    try:
        yield
    finally:
        names.update(hidden)


@contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Keeps Ctrl-C from a process that does not ignore it yet; it inherits the mask."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
