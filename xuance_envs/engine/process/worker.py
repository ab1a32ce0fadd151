"""Main loop of a worker process."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import PicklingHost
from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.group.step_clock import ProgressRecord
from xuance_envs.engine.process.channel import Inbox, frame, write_all
from xuance_envs.engine.process.common_step import Follower
from xuance_envs.engine.process.settings import WorkerArguments
from xuance_envs.engine.process.shared_memory import SharedBuffer, SharedMemory, unpack_buffers
from xuance_envs.engine.process.worker_diagnostics import open_recorder
from xuance_envs.engine.stream import PeerGoneError
from xuance_envs.engine.system.current import system

ORPHAN_GRACE = 1.0  # seconds a worker has to close its environments after the main process ended


def run(settings: WorkerArguments, recorder: ProgressRecord) -> None:
    """Serve requests until the main process closes this worker or ends."""
    random.seed()  # otherwise, all forked workers would draw equal numbers
    np.random.seed()
    if (generator := getattr(sys.modules.get("torch"), "default_generator", None)) is not None:
        generator.seed()
    # Processes that environments fork may use all CPUs, even if this worker is pinned.
    if (cpus := system.cpu_affinity()) is not None:
        system.after_fork(lambda: system.set_cpu_affinity(0, cpus))
    counters = () if settings.common is None else settings.common.counters
    _detach_in_forks(settings.requests.fd, settings.replies.fd, *[each.fd for each in counters])
    inbox = Inbox(settings.requests.fd, spin=settings.spin)
    watched = inbox.fd, ORPHAN_GRACE
    threading.Thread(target=system.end_after_main, args=watched, daemon=True).start()
    system.end_natively_after_main()
    worker = Worker(settings, recorder)
    try:
        worker.serve(inbox, settings.replies.fd)
    except PeerGoneError:
        pass  # the main process ended without closing
    finally:
        worker.close()


_GROUP_REQUESTS = frozenset({RequestType.STEP, RequestType.CALL})


class Worker:
    """Main loop of a worker process, which executes the requests to its groups."""

    def __init__(self, settings: WorkerArguments, recorder: ProgressRecord) -> None:
        self._settings = settings
        self._memory = SharedMemory(settings.memory.fd, settings.reserved)
        first = PicklingHost(self._arrays, settings.threads, recorder, settings.env_fns or ())
        self._hosts = {settings.index: first}
        self._follower = Follower(settings.common, self._memory, settings.index)

    def serve(self, requests: Inbox, replies: int) -> None:
        """Answer each request with one reply until the close request."""
        group = self._settings.index
        host = self._hosts[group]
        buffers: Sequence[SharedBuffer] = ()
        follower = self._follower
        while True:
            while follower.following and follower.is_woken(requests):
                reply, payload = host.answer(RequestType.STEP, b"")
                if follower.finish(reply):
                    write_all(replies, frame(reply, payload))
            code, payload = requests.take()
            if code in _GROUP_REQUESTS:
                write_all(replies, frame(*host.answer(code, payload, buffers)))
                buffers = ()
            elif code == RequestType.BUFFERS:
                buffers = unpack_buffers(self._memory.fd, payload)
            elif code == RequestType.GROUP:
                group = int(payload)
                host = self._host_for(group)
            elif code == RequestType.FOLLOW:
                follower.follow()
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
        self, spaces: StepSpaces, num_envs: int, start: int, lo: int, hi: int, *options: Any
    ) -> StepArrays:
        """Map a group's slice of the shared arrays."""
        memory = self._memory.map(start, StepArrays.nbytes(spaces, num_envs, *options))
        system.make_private_in_forks(memory, self._memory.fd, start)
        arrays = StepArrays.allocate(spaces, num_envs, memory, *options)
        return arrays.slice(lo, hi)


def _detach_in_forks(*fds: int) -> None:
    """Prevent processes forked by environments from using this worker's pipes and counters."""

    def redirect() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in fds:
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    system.after_fork(redirect)
