"""Main loop of a worker process."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import PicklingHost
from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.group.step_clock import ProgressRecord
from xuance_envs.engine.process.channel import Inbox, frame, write_all
from xuance_envs.engine.process.common_step import Follower
from xuance_envs.engine.process.shared_memory import SharedBuffer, SharedMemory, unpack_buffers
from xuance_envs.engine.process.worker_diagnostics import open_region
from xuance_envs.engine.stream import PeerGoneError
from xuance_envs.engine.system.current import system

ORPHAN_GRACE = 1.0  # seconds a worker has to close its environments after the main process ended

_GROUP_REQUESTS = frozenset({RequestType.STEP, RequestType.CALL})


def run(
    recorder: ProgressRecord,
    fds: Sequence[int],
    codes: tuple[int, int],
    index: int,
    threads: int | None,
    spin: float,
    env_fns: Sequence[Callable[..., Any]],
) -> None:
    """Serve requests until the main process closes this worker or ends."""
    random.seed()  # otherwise, all forked workers would draw equal numbers
    np.random.seed()
    if (generator := getattr(sys.modules.get("torch"), "default_generator", None)) is not None:
        generator.seed()
    # Processes that environments fork may use all CPUs, even if this worker is pinned.
    if (cpus := system.cpu_affinity()) is not None:
        system.after_fork(lambda: system.set_cpu_affinity(0, cpus))
    memory_fd, requests_fd, replies, *counters = fds
    system.after_fork(lambda: _redirect_to_null(requests_fd, replies, *counters))
    requests = Inbox(requests_fd, spin=spin)
    watched = requests_fd, ORPHAN_GRACE
    threading.Thread(target=system.end_after_main, args=watched, daemon=True).start()
    system.end_natively_after_main()
    memory = SharedMemory(memory_fd)
    new_host = partial(PicklingHost, partial(_map_arrays, memory), threads)
    host = new_host(recorder, env_fns)
    hosts = {index: host}  # by the number of the group
    try:
        follower = Follower(counters, codes, index, memory)
        buffers: Sequence[SharedBuffer] = ()
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
                buffers = unpack_buffers(memory_fd, payload)
            elif code == RequestType.GROUP:
                index = int(payload)
                if index not in hosts:
                    hosts[index] = new_host(open_region(memory_fd, index)[1])
                host = hosts[index]
            elif code == RequestType.FOLLOW:
                follower.follow()
            elif code == RequestType.LEAVE:
                hosts.pop(index).close()
                write_all(replies, frame(ReplyType.OK))
            else:
                return
    except PeerGoneError:
        pass  # the main process ended without closing
    finally:
        for host in hosts.values():
            host.close()


def _redirect_to_null(*fds: int) -> None:
    """Detach a process forked by an environment from this worker's pipes and counters."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _map_arrays(
    memory: SharedMemory, spaces: StepSpaces, num_envs: int, start: int, lo: int, hi: int, *how: Any
) -> StepArrays:
    """Map a group's slice of the shared arrays."""
    mapped = memory.map(start, StepArrays.nbytes(spaces, num_envs, *how))
    system.make_private_in_forks(mapped, memory.fd, start)
    return StepArrays.allocate(spaces, num_envs, mapped, *how).slice(lo, hi)
