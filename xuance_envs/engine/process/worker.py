"""Main loop of a worker process."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.pickling_host import PicklingHost
from xuance_envs.engine.group.progress_record import ProgressRecord
from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.process.channel import Inbox, PeerGoneError, frame, write_all
from xuance_envs.engine.process.guardian import signal_after_main
from xuance_envs.engine.process.settings import WorkerSettings
from xuance_envs.engine.process.shared_memory import (
    SharedBuffer,
    SharedMemory,
    make_private_in_forks,
    unpack_buffers,
)
from xuance_envs.engine.process.worker_diagnostics import open_recorder

ORPHAN_GRACE = 1.0
"""Seconds a worker has to close its environments after the main process ended."""


def run(settings: WorkerSettings, recorder: ProgressRecord) -> None:
    """Serve requests until the main process closes this worker or ends."""
    random.seed()  # forked workers would otherwise draw the same numbers
    np.random.seed()
    _unpin_forks()
    _detach_pipes_in_forks(settings.requests.fd, settings.replies.fd)
    inbox = Inbox(settings.requests.fd, spin=settings.spin)
    threading.Thread(target=_exit_after_main, args=(inbox.fd,), daemon=True).start()
    _exit_after_main_natively()
    worker = Worker(settings, recorder)
    try:
        worker.serve(inbox, settings.replies.fd)
    except PeerGoneError:
        pass  # the main process ended without closing
    finally:
        worker.close()


_GROUP_REQUESTS = frozenset({RequestType.STEP, RequestType.CALL})


class Worker:
    """Server of requests to one group, or to several groups that are used in turn."""

    def __init__(self, settings: WorkerSettings, recorder: ProgressRecord) -> None:
        self._settings = settings
        self._memory = SharedMemory(settings.memory.fd, settings.reserved)
        first = PicklingHost(self._arrays, settings.threads, recorder, settings.env_fns or ())
        self._hosts = {settings.index: first}

    def serve(self, requests: Inbox, replies: int) -> None:
        """Answer each request with one reply until the close request."""
        group = self._settings.index
        host = self._hosts[group]
        buffers: Sequence[SharedBuffer] = ()
        while True:
            code, payload = requests.receive()
            requests.clear()
            if code in _GROUP_REQUESTS:
                write_all(replies, frame(*host.answer(code, payload, buffers)))
                buffers = ()
            elif code == RequestType.BUFFERS:
                buffers = unpack_buffers(self._memory.fd, payload)
            elif code == RequestType.GROUP:
                group = int(payload)
                host = self._host_for(group)
            elif code == RequestType.LEAVE:
                self._hosts.pop(group).close()
                write_all(replies, frame(ReplyType.OK))
            else:
                return

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()

    def _host_for(self, group: int) -> PicklingHost:
        """Return the host of a group, created on first use."""
        host = self._hosts.get(group)
        if host is None:
            recorder = open_recorder(self._memory.fd, group)
            host = self._hosts[group] = PicklingHost(self._arrays, self._settings.threads, recorder)
        return host

    def _arrays(
        self, spaces: tuple[Any, Any], num_envs: int, info_bytes: int, start: int, lo: int, hi: int
    ) -> StepArrays:
        """Map a group's slice of the shared arrays."""
        memory = self._memory.map(start, StepArrays.nbytes(*spaces, num_envs, info_bytes))
        make_private_in_forks(memory, self._memory.fd, start)
        return StepArrays.allocate(*spaces, num_envs, memory, info_bytes).slice(lo, hi)


def _unpin_forks() -> None:
    """Let processes that environments fork use all CPUs, even if this worker is pinned."""
    if hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
        os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, cpus))


def _detach_pipes_in_forks(requests: int, replies: int) -> None:
    """Keep processes that environments fork from writing to this worker's pipes."""

    def redirect_pipes() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (requests, replies):
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    os.register_at_fork(after_in_child=redirect_pipes)


def _exit_after_main(requests: int) -> None:
    """End this process and its group shortly after the main process, even if they are busy."""
    poll = select.poll()
    poll.register(requests, 0)  # report no data, only the end of the pipe
    while not poll.poll():
        pass
    time.sleep(ORPHAN_GRACE / 2)
    signal.alarm(2)  # postpone the native end, which leaves the rest of the group
    time.sleep(ORPHAN_GRACE / 2)
    os.killpg(0, signal.SIGKILL)


def _exit_after_main_natively() -> None:
    """End this process after the main process ends, even if a thread never releases the GIL.

    The kernel sends a signal whose handler is C's ``alarm``. It receives the signal's number, and
    that many seconds later SIGALRM ends this process. SIGCONT makes a stopped process end, too.
    """
    if signal_after_main(signal.SIGCONT) is None:
        return
    # SIGHUP fits best, but if it is ignored, as under nohup, it must stay ignored.
    hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    number = signal.SIGHUP if hangup else signal.SIGQUIT
    libc = ctypes.CDLL(None)
    libc.signal(int(number), libc.alarm)
    signal_after_main(number)
