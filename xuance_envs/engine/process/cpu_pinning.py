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

__all__ = ["CpuPinner"]

SAMPLE_STEPS = 16
"""Steps that a look at how quick they are takes."""

SAMPLE_INTERVAL = 256
"""Steps between two looks."""

FAST_STEP_SECONDS = 1e-3
"""Mean time of a step, in seconds, below which its processes are placed.

Slower environments lose little by waking up late, and may start processes and threads of their
own, which would inherit the one CPU.
"""


class CpuPinner:
    """Gives each worker a CPU of its own while steps are quick, and all CPUs otherwise.

    It does so only where there are exactly as many processes stepping as CPUs: with fewer the
    kernel has room, with more it has to share them out in any case.
    """

    def __init__(self, pids: Sequence[int], caller_steps: bool, cpus: int) -> None:
        self._pids = list(pids)
        self._current_cpu = _current_cpu() if caller_steps else None
        self._all_cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._affinities = [self._all_cpus] * len(pids)
        self._sample_start: float | None = None
        self._slow_samples = 0
        fits = (
            hasattr(os, "sched_setaffinity")
            and len(pids) + caller_steps == cpus == len(self._all_cpus)
            and (self._current_cpu is not None) == caller_steps
        )
        self._steps = 0
        self._next_sample: float = 1 if fits else float("inf")

    def replace(self, index: int, pid: int) -> None:
        """Takes note that another process has taken the place of one."""
        if self._pids:
            self._pids[index] = pid
            self._affinities[index] = self._all_cpus

    def step(self) -> None:
        """Is called before each step."""
        self._steps += 1
        if self._steps >= self._next_sample:
            self._sample()

    def _sample(self) -> None:
        """Begins a look, or ends it and places the workers as its steps were quick or not."""
        now = perf_counter()
        if self._sample_start is None:
            self._sample_start = now
            self._next_sample = self._steps + SAMPLE_STEPS
            return
        quick = now - self._sample_start < FAST_STEP_SECONDS * SAMPLE_STEPS
        self._sample_start = None
        self._next_sample = self._steps + SAMPLE_INTERVAL
        # A pause of the caller's that falls into a look makes quick steps seem slow.
        self._slow_samples = 0 if quick else self._slow_samples + 1
        if self._slow_samples == 1:
            return
        affinities = [self._all_cpus] * len(self._pids)
        # A caller that has been bound to some CPUs since knows why, and the workers have the rest.
        if quick and os.sched_getaffinity(0) == self._all_cpus:
            own = {self._current_cpu()} if self._current_cpu is not None else set()
            affinities = [{cpu} for cpu in sorted(self._all_cpus - own)]
        if affinities == self._affinities:
            return
        try:
            if [os.sched_getaffinity(pid) for pid in self._pids] != self._affinities:
                self._next_sample = float("inf")  # somebody else has bound them
                return
            for pid, affinity in zip(self._pids, affinities, strict=True):
                os.sched_setaffinity(pid, affinity)
        except OSError:  # one has ended, which its pipe tells; or the system forbids it
            self._next_sample = float("inf")
        self._affinities = affinities


def _current_cpu() -> Callable[[], int] | None:
    """The C library's function that tells which CPU the calling thread is on, if it has one."""
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)
