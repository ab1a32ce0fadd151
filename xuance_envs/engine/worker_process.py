"""A worker process, seen from the process that started it.

What it guarantees:

- A request is answered, or the end of the process is noticed at once, whatever it was doing.
  So is that it takes longer than it may. While one is waited for, the end of another one is
  noticed, too.
- A process does not import the ``__main__`` of the one that started it, and does not outlive it.
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
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine import bootstrap
from xuance_envs.engine.black_box import BlackBox
from xuance_envs.engine.bootstrap import PassedFd, WorkerSettings
from xuance_envs.engine.crew import shown
from xuance_envs.engine.doorbell import Channel, PeerGoneError, Reply, Request, frame
from xuance_envs.engine.env_group import DONE, ENDED, Autoreset, Outcome
from xuance_envs.engine.library_threads import limited_in_fork
from xuance_envs.engine.process_end import FORCE
from xuance_envs.engine.process_start import (
    blocked_sigint,
    deferred_interrupt,
    hidden_main,
    pidfd_of,
    room_for_descriptors,
    two_pipes,
)
from xuance_envs.engine.serialization import dumps_for_worker, loads, unpack_error
from xuance_envs.engine.shared_memory import SharedMemory
from xuance_envs.engine.step_arrays import StepArrays, first_unstepped
from xuance_envs.engine.step_clock import StepTimes
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["StartSettings", "WorkerProcess", "start_worker"]

LOOK = 0.25
"""Seconds between two looks at the other workers, while one is waited for."""

STOPPED = 1.0
"""Seconds that a look takes longer than it may when this process was stopped: by Ctrl-Z, which
stops its workers, too."""

_STEP = frame(Request.STEP)
_OUTCOMES: dict[int, Outcome] = {Reply.DONE: DONE, Reply.ENDED: ENDED}

# Also held while descriptors come and go; a collected vector environment lets go of some at any
# moment, hence reentrant.
_changing = threading.RLock()

# The callers' ends of all workers' pipes, and the workers.
_own_fds: set[int] = set()
_own_processes: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown() -> None:
    """Makes a forked process one that has no workers.

    It inherits the callers' ends of their pipes, and as long as it held them, nobody would
    notice the end of this process. And multiprocessing would end the workers when it exits.
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
        autoreset: when an environment whose episode ended is reset.
    """

    context: BaseContext
    memory: SharedMemory
    threads: int | None
    spin: float
    own_spin: float
    timeout: float | None
    start_timeout: float | None
    autoreset: Autoreset = Autoreset.SAME_STEP


class WorkerProcess:
    """One group of environments in a process of its own; a driver of it.

    Args:
        settings: how to start it.
        index: which worker of the vector environment it is.
        lo: index of its first environment.
        hi: index after its last environment.
        env_fns: what makes its environments, if it can inherit them.

    Attributes:
        siblings (Sequence[WorkerProcess]): those whose end is an error to this one's caller, too.
        rewards: its slice of the rewards, which tell how far it is in a step.
    """

    # Seconds that this process, and with it all workers, turned out to have been stopped.
    _paused = 0.0

    def __init__(
        self,
        settings: StartSettings,
        index: int,
        lo: int,
        hi: int,
        env_fns: Sequence[Callable[..., Any]] | None,
    ) -> None:
        self.index = index
        self.lo = lo
        self.hi = hi
        self.inherits = env_fns is not None
        self._command = "start"
        self._timeout = settings.timeout
        self._start_timeout = settings.start_timeout
        self._limit: float | None = None
        self._due: float | None = None
        self._paused_before = 0.0
        self._received = 0
        self.siblings: Sequence[WorkerProcess] = ()
        self.rewards: NDArray[np.float64] | None = None
        self._failed = False
        self._released = False
        self._black_box = BlackBox(settings.memory.fd, index)
        self._black_box.clear()
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
                env_fns=env_fns,
            )
            self.process: Any = settings.context.Process(  # type: ignore[attr-defined]
                target=bootstrap.start,
                args=(worker_settings,),
                name=f"xuance_envs-{lo}-{hi - 1}",
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
        self._channel = Channel(requests, replies, self.peer, settings.own_spin)
        self._own_fds = own_fds

    def _start(self, settings: StartSettings) -> None:
        forked = settings.context.get_start_method() == "fork"
        with limited_in_fork(settings.threads) if forked else hidden_main():
            self.process.start()
        _own_processes.add(self.process)

    def attach(self, arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.crew.CrewWorker`: its group writes to their memory."""
        self.rewards = arrays.rewards

    @property
    def tag(self) -> int:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._channel.tag

    def pack_actions(self, actions: list[list[Any]]) -> bytes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return frame(Request.CALL, dumps_for_worker(("step", (actions,))))

    def ask_step(self, tag: int, actions: bytes | None) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        self._set_command("step", self._timeout)
        # A worker that is gone is noticed, and reported, when its result is asked for.
        try:
            self._channel.ask(_STEP if actions is None else actions, tag, self.due)
        except (PeerGoneError, TimeoutError):
            return

    def pack(self, command: str, *arguments: Any) -> tuple[str, bytes]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        try:
            return command, frame(Request.CALL, dumps_for_worker((command, arguments)))
        except Exception as error:
            raise TypeError(
                f"what {command!r} was given cannot be sent to a worker process, because it "
                f"cannot be pickled: {error}"
            ) from error

    def ask(self, tag: int, packed: tuple[str, bytes]) -> None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        command, message = packed
        starts = command in ("build", "rebuild")
        self._set_command(command, self._start_timeout if starts else self._timeout)
        with suppress(PeerGoneError, TimeoutError):
            self._channel.ask(message, tag, self.due)

    def _set_command(self, command: str, limit: float | None) -> None:
        self._command = command
        self._limit = limit
        self._give_time()
        self._received = 0

    def _give_time(self) -> None:
        self._due = None if self._limit is None else monotonic() + self._limit
        self._paused_before = WorkerProcess._paused

    @property
    def due(self) -> float | None:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        if self._due is None:
            return None
        return self._due + WorkerProcess._paused - self._paused_before

    def discard(self) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        with suppress(Exception):
            return self.result()
        return None

    def result(self, deadline: float | None = None) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`.

        Raises:
            WorkerDiedError: it has ended, or one of its siblings.
            WorkerTimeoutError: it has not answered in the time it was given; it has ended now.
        """
        code, payload = self._answer(deadline)
        if (outcome := _OUTCOMES.get(code)) is not None:
            return outcome
        if code == Reply.RESULT:
            return loads(payload)
        raise unpack_error(payload)

    def _answer(self, deadline: float | None) -> tuple[int, bytes]:
        while True:
            began = monotonic()
            until, due = began + LOOK, self.due
            if due is not None:
                until = min(until, due)
            if deadline is not None:
                until = min(until, deadline)
            try:
                return self._channel.answer(until)
            except PeerGoneError:
                raise self.death() from None
            except TimeoutError:
                now = monotonic()
                if now > began + LOOK + STOPPED:
                    WorkerProcess._paused += now - began
                elif self.due is not None and now >= self.due and not self._progresses():
                    raise self._overdue() from None
                if deadline is not None and now >= deadline:
                    raise
                for sibling in self.siblings:
                    if not sibling.alive:
                        raise sibling.death() from None

    def _progresses(self) -> bool:
        """Whether more of an answer has come, and then gives it as long again.

        A long answer does not fit the pipe: it takes a caller that reads it, and that came late.
        """
        before, self._received = self._received, self._channel.received
        self._give_time()
        return self._received > before

    def thaw(self, frozen: bytes) -> Any:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return loads(frozen)

    def times(self) -> StepTimes:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self._black_box.times()

    def death(self) -> WorkerDiedError:
        """The error that says how it ended; it has."""
        self._failed = True
        self._join()
        command, env = shown(self._command), self._env_at_work()
        return WorkerDiedError(
            range(self.lo, self.hi),
            self.pid,
            self.process.exitcode,
            command,
            self._black_box.last_words(),
            env,
        )

    def _overdue(self) -> WorkerTimeoutError:
        """Ends the process in such a way that it says where it was."""
        self._failed = True
        command, env = shown(self._command), self._env_at_work()
        with suppress(OSError, ValueError, AttributeError, ImportError):
            import resource

            # Only the report is wanted, not a file with all of its memory.
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
            os.kill(self.pid, signal.SIGABRT)
        self.process.join(FORCE)
        self.process.kill()
        assert self._limit is not None
        return WorkerTimeoutError(
            range(self.lo, self.hi),
            self.pid,
            self._limit,
            command,
            self._black_box.last_words(),
            env,
        )

    def _env_at_work(self) -> int | None:
        place = self._black_box.place()
        if place is None and self._command == "step" and self.rewards is not None:
            place = first_unstepped(self.rewards)
        return None if place is None else self.lo + place

    def _join(self) -> None:
        """Waits for the process, which has ended."""
        # Its children may hold open what join looks at first.
        if self.process.exitcode is None:
            self.process.join(FORCE)

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
        if self._released:
            return False
        if self._pidfd is None:
            return bool(self.process.is_alive())
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    @property
    def failed(self) -> bool:
        """Whether it ended by itself or hung, and its caller has been told so."""
        return self._failed

    @property
    def fds(self) -> tuple[int, ...]:
        """See :class:`~xuance_envs.engine.driver.Driver`."""
        return self.replies, self.peer

    @property
    def replies(self) -> int:
        """The descriptor its replies come through."""
        return self._channel.replies

    def release(self) -> None:
        """Frees what is held for a process that has ended; again, it does nothing."""
        if self._released:
            return
        self._released = True
        with _changing:
            _forget(self._own_fds)
            self._channel.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
            self._join()
            with suppress(ValueError):  # it cannot even be killed, which the kernel alone can mend
                self.process.close()

    @property
    def owned(self) -> bool:
        """Whether this process started it; not so in a process forked since."""
        return self._owner == os.getpid()


def start_worker(
    settings: StartSettings,
    index: int,
    lo: int,
    hi: int,
    env_fns: Sequence[Callable[..., Any]] | None,
    started: Callable[[WorkerProcess], None],
) -> None:
    """Starts a worker process, and hands it over; no interrupt comes between the two.

    Args:
        settings: how to start it.
        index: which worker of the vector environment it is.
        lo: index of its first environment.
        hi: index after its last environment.
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
            started(WorkerProcess(settings, index, lo, hi, env_fns))


def _forget(fds: set[int]) -> None:
    with _changing:
        _own_fds.difference_update(fds)
