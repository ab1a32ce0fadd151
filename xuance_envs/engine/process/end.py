"""How worker processes end: by themselves if they can, by force if they must, in bounded time."""

from __future__ import annotations

import select
from collections.abc import Sequence
from time import monotonic

from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.start import deferred_interrupt
from xuance_envs.engine.process.worker_process import FORCE, WorkerProcess

__all__ = ["PATIENCE", "end_all"]

PATIENCE = 5.0
"""Seconds the workers have to close their environments before they are terminated."""

HASTE = 0.5
"""The same, where one has ended by itself or hangs, and the caller waits to be told."""


def end_all(drivers: list[ProcessDriver], patience: float = PATIENCE) -> None:
    """Ends worker processes: asks them to, then terminates, then kills those that are left.

    One that has another vector environment's group, too, goes on with that.

    Args:
        drivers: theirs; the list is empty afterwards.
        patience: seconds they have to close their environments; less, where one has failed.
    """
    drivers[:] = [driver for driver in drivers if driver.worker.owned]
    for driver in [driver for driver in drivers if driver.worker.groups > 1]:
        drivers.remove(driver)
        driver.leave(patience)
    workers = [driver.worker for driver in drivers]
    if any(worker.failed for worker in workers):
        patience = min(patience, HASTE)
    try:
        for worker in workers:
            worker.channel.ask_to_close()
        _wait_for_end(workers, patience)
        for worker in workers:
            if worker.alive:
                worker.process.terminate()
        _wait_for_end(workers, FORCE)
    finally:  # also when Ctrl-C says that patience is over
        with deferred_interrupt():
            for worker in workers:
                if worker.alive:
                    worker.kill()
            _wait_for_end(workers, FORCE)
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
    talking = {worker.channel.replies: worker.channel for worker in running.values()}
    while running and (left := deadline - monotonic()) > 0:
        for fd, event in poll.poll(left * 1e3):
            if fd in running:
                del running[fd]
                poll.unregister(fd)
            elif event & select.POLLIN:
                talking[fd].drain()
            else:  # it has closed its end, which would keep the poll awake
                poll.unregister(fd)
