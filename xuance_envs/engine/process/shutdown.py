"""Shutdown of worker processes in bounded time: by request, then SIGTERM, then SIGKILL."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from xuance_envs.engine.backend import CLOSE_TIMEOUT, FAILED_CLOSE_TIMEOUT
from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.spawning import deferred_interrupt
from xuance_envs.engine.process.worker_process import KILL_TIMEOUT, WorkerProcess
from xuance_envs.engine.system.current import system


def stop_workers(drivers: list[ProcessDriver], close_timeout: float = CLOSE_TIMEOUT) -> None:
    """End worker processes, except those with groups of other vectorized environments."""
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
                worker.terminate()
        _wait_for_end(workers, KILL_TIMEOUT)
    finally:  # also if Ctrl-C cuts the wait short
        with deferred_interrupt():
            for worker in workers:
                if worker.alive:
                    worker.kill()
            _wait_for_end(workers, KILL_TIMEOUT)
            for worker in workers:
                if worker.alive:  # its guardian does not respond
                    worker.process.kill()
            while drivers:
                drivers.pop().worker.release()


def _wait_for_end(workers: Sequence[WorkerProcess], seconds: float) -> None:
    """Wait until the processes have ended or the time is up, and drain their replies meanwhile."""
    deadline = monotonic() + seconds
    poll = system.poll()
    running = {}
    for worker in workers:
        if worker.alive:
            running[worker.peer] = worker
            poll.register(worker.peer, system.POLLIN)
            poll.register(worker.channel.replies, system.POLLIN)
    channels = {worker.channel.replies: worker.channel for worker in running.values()}
    while running and (left := deadline - monotonic()) > 0:
        for fd, event in poll.poll(left * 1e3):
            if fd in running:
                del running[fd]
                poll.unregister(fd)
            elif event & system.POLLIN:
                channels[fd].drain()
            else:  # the worker closed its end, so poll would return immediately every time
                poll.unregister(fd)
