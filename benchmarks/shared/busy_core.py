"""A process that keeps one core half busy, like another user's program on a shared machine."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from xuance_envs.measure import Runner

__all__ = ["BusyCore", "Disturbed"]

PERIOD = 0.01
"""Seconds of one cycle of work and sleep."""

WORK = 0.5
"""Share of the core's time."""


class BusyCore:
    """A process pinned to one CPU that computes half of the time while enabled.

    It measures its CPU time, because it gets less than half of a core that other processes use.
    """

    def __init__(self) -> None:
        if not hasattr(os, "sched_setaffinity"):
            raise RuntimeError("binding a process to a CPU needs Linux")
        context = multiprocessing.get_context("spawn")
        self.cpu = max(os.sched_getaffinity(0))
        self._at_work = context.Event()
        self._ready = context.Event()
        self._process = context.Process(
            target=_work, args=(self.cpu, self._at_work, self._ready), daemon=True
        )
        self._process.start()
        self._ready.wait()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the core busy within this context."""
        self._at_work.set()
        try:
            yield
        finally:
            self._at_work.clear()

    def cpu_seconds(self) -> float:
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


class Disturbed:
    """A runner with one core half busy while it runs.

    ``share`` is the other process's share of the core in the last run.
    """

    def __init__(self, runner: Runner, busy: BusyCore) -> None:
        self.num_envs = runner.num_envs
        self.share = 0.0
        self._runner = runner
        self._busy = busy

    def run(self, steps: int) -> float:
        with self._busy.at_work():
            used, start = self._busy.cpu_seconds(), time.perf_counter()
            seconds = self._runner.run(steps)
            self.share = (self._busy.cpu_seconds() - used) / (time.perf_counter() - start)
        return seconds


def _work(cpu: int, at_work: Event, ready: Event) -> None:
    os.sched_setaffinity(0, {cpu})
    ready.set()
    while True:
        at_work.wait()
        end = time.monotonic() + PERIOD
        worked = time.process_time() + WORK * PERIOD
        while time.process_time() < worked and time.monotonic() < end:
            pass
        time.sleep(max(0.0, end - time.monotonic()))
