"""Keeps processes that spin on CPUs of their own.

Two processes that wait for each other by spinning work well on two CPUs and badly on one, and
a kernel may leave them on one for seconds: neither ever sleeps, so nothing makes it choose
again. Kernels that save power by packing tasks together even put them there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from time import perf_counter

__all__ = ["Placement"]

LOOK = 16
"""Steps that a look at how quick they are takes."""

EVERY = 256
"""Steps between two looks."""

QUICK = 1e-3
"""Mean time of a step, in seconds, below which its processes are placed.

Slower environments lose little by waking up late, and may start processes and threads of their
own, which would inherit the one CPU.
"""


class Placement:
    """Gives each worker a CPU of its own while steps are quick, and all CPUs otherwise.

    It does so only where there are exactly as many processes stepping as CPUs: with fewer the
    kernel has room, with more it has to share them out in any case.

    Args:
        pids: the worker processes.
        caller_steps: whether this process steps, too. It is never bound to a CPU: the workers
            keep out of its way.
        cpus: how many CPUs this process may use.
    """

    def __init__(self, pids: Sequence[int], caller_steps: bool, cpus: int) -> None:
        self._pids = list(pids)
        self._current_cpu = _current_cpu() if caller_steps else None
        self._free = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._places = [self._free] * len(pids)
        self._since: float | None = None
        self._slow_looks = 0
        fits = (
            hasattr(os, "sched_setaffinity")
            and len(pids) + caller_steps == cpus == len(self._free)
            and (self._current_cpu is not None) == caller_steps
        )
        self._steps = 0
        self._due: float = 1 if fits else float("inf")

    def replace(self, index: int, pid: int) -> None:
        """Takes note that another process has taken the place of one."""
        if self._pids:
            self._pids[index] = pid
            self._places[index] = self._free

    def step(self) -> None:
        """Is called before each step."""
        self._steps += 1
        if self._steps >= self._due:
            self._look()

    def _look(self) -> None:
        """Begins a look, or ends it and places the workers as its steps were quick or not."""
        now = perf_counter()
        if self._since is None:
            self._since = now
            self._due = self._steps + LOOK
            return
        quick = now - self._since < QUICK * LOOK
        self._since = None
        self._due = self._steps + EVERY
        # A pause of the caller's that falls into a look makes quick steps seem slow.
        self._slow_looks = 0 if quick else self._slow_looks + 1
        if self._slow_looks == 1:
            return
        places = [self._free] * len(self._pids)
        # A caller that has been bound to some CPUs since knows why, and the workers have the rest.
        if quick and os.sched_getaffinity(0) == self._free:
            own = {self._current_cpu()} if self._current_cpu is not None else set()
            places = [{cpu} for cpu in sorted(self._free - own)]
        if places == self._places:
            return
        try:
            if [os.sched_getaffinity(pid) for pid in self._pids] != self._places:
                self._due = float("inf")  # somebody else has bound them
                return
            for pid, place in zip(self._pids, places, strict=True):
                os.sched_setaffinity(pid, place)
        except OSError:  # one has ended, which its pipe tells; or the system forbids it
            self._due = float("inf")
        self._places = places


def _current_cpu() -> Callable[[], int] | None:
    """The C library's function that tells which CPU the calling thread is on, if it has one."""
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)
