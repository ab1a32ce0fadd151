"""How worker processes end: by themselves if they can, by force if they must, in bounded time."""

from __future__ import annotations

import select
from collections.abc import Sequence
from time import monotonic

from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.spawning import deferred_interrupt
from xuance_envs.engine.process.worker_process import KILL_TIMEOUT, WorkerProcess

__all__ = ["CLOSE_TIMEOUT", "stop_workers"]

CLOSE_TIMEOUT = 5.0
"""Seconds the workers have to close their environments before they are terminated."""

FAILED_CLOSE_TIMEOUT = 0.5
"""The same, where one has ended by itself or hangs, and the caller waits to be told."""


def stop_workers(drivers: list[ProcessDriver], close_timeout: float = CLOSE_TIMEOUT) -> None:
    """Ends worker processes: asks them to, then terminates, then kills those that are left.

    One that has another vector environment's group, too, goes on with that.
    """
    drivers[:] = [driver for driver in drivers if driver.worker.is_owner]
    for driver in [driver for driver in drivers if driver.worker.num_groups > 1]:
        drivers.remove(driver)
        driver.detach(close_timeout)
    workers = [driver.worker for driver in drivers]
    if any(worker.failed for worker in workers):
        close_timeout = min(close_timeout, FAILED_CLOSE_TIMEOUT)
    try:
        for worker in workers:
            worker.channel.request_close()
        _wait_for_end(workers, close_timeout)
        for worker in workers:
            if worker.alive:
                worker.process.terminate()
        _wait_for_end(workers, KILL_TIMEOUT)
    finally:  # also when Ctrl-C says that close_timeout is over
        with deferred_interrupt():
            for worker in workers:
                if worker.alive:
                    worker.kill()
            _wait_for_end(workers, KILL_TIMEOUT)
            for worker in workers:
                if worker.alive:  # nor does its guardian answer
                    worker.process.kill()
            while drivers:
                drivers.pop().worker.release()


def _wait_for_end(workers: Sequence[WorkerProcess], seconds: float) -> None:
    """Waits until the processes have ended, or so many seconds; lets them reply meanwhile."""
    deadline = monotonic() + seconds
    poll = select.poll()
    running = {}
    for worker in workers:
        if worker.alive:
            running[worker.peer] = worker
            poll.register(worker.peer, select.POLLIN)
            poll.register(worker.channel.replies, select.POLLIN)
    channels = {worker.channel.replies: worker.channel for worker in running.values()}
    while running and (left := deadline - monotonic()) > 0:
        for fd, event in poll.poll(left * 1e3):
            if fd in running:
                del running[fd]
                poll.unregister(fd)
            elif event & select.POLLIN:
                channels[fd].drain()
            else:  # it has closed its end, which would keep the poll awake
                poll.unregister(fd)
