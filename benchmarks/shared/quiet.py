"""Whether a machine can be trusted with timings: what others use of it, how equal its cores are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["BUSY", "EQUAL", "Look", "busy_fraction", "look", "slowest_core", "wait_until_quiet"]

BUSY = 0.1
"""More than this part of the machine at work for others: figures taken then say little."""

EQUAL = 0.9
"""A core that does less than this part of what the quickest one does holds everybody up."""

LOOK_SECONDS = 0.6
"""How long to look whether the machine is busy."""

PAUSE = 5.0
"""Seconds between one look at a busy machine and the next."""

TURNS, ADDITIONS = 7, 200_000
"""How often each core is timed, and with how much."""


@dataclass(frozen=True)
class Look:
    """What a look at the machine showed.

    Attributes:
        busy: the part of it at work for others; None where the system does not say.
        slowest_core: what the slowest core does, in parts of what the quickest does; None likewise.
    """

    busy: float | None
    slowest_core: float | None

    @property
    def quiet(self) -> bool:
        """Whether figures taken now say something; yes where nothing is known."""
        return (self.busy or 0.0) <= BUSY and (self.slowest_core or 1.0) >= EQUAL

    def __str__(self) -> str:
        if self.busy is None or self.slowest_core is None:
            return "this system does not say what others use"
        return f"others use {self.busy:.0%}, the slowest core does {self.slowest_core:.0%}"


def look() -> Look:
    """Looks for a second or so."""
    return Look(busy_fraction(), slowest_core())


def wait_until_quiet(
    seconds: float, say: Callable[[str], None], looking: Callable[[], Look] = look
) -> tuple[Look, float]:
    """Waits while the machine is busy, or its cores unequal.

    Args:
        seconds: at most so long.
        say: is told what is waited for, and when waiting was in vain.
        looking: looks at the machine.

    Returns:
        The last look, and how many seconds were waited.
    """
    start, waited = time.monotonic(), 0.0
    seen = looking()
    while not seen.quiet and waited < seconds:
        say(f"waiting for a quiet machine: {seen}")
        time.sleep(min(PAUSE, seconds - waited))
        seen, waited = looking(), time.monotonic() - start
    if not seen.quiet:
        say(f"WARNING: {seen}; figures taken now say little")
    return seen, waited


def busy_fraction() -> float | None:
    """The part of all cores' time that was spent at work (or stolen by a hypervisor)."""

    def read() -> tuple[int, int]:
        fields = [int(text) for text in stat.read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    total, idle = read()
    time.sleep(LOOK_SECONDS)
    later_total, later_idle = read()
    return 1 - (later_idle - idle) / max(later_total - total, 1)


def slowest_core() -> float | None:
    """What the slowest core does, in parts of what the quickest does, with this thread on each."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    cpus = os.sched_getaffinity(0)
    took: dict[int, list[float]] = {cpu: [] for cpu in cpus}
    try:
        for _ in range(TURNS):
            for cpu, times in took.items():
                os.sched_setaffinity(0, {cpu})
                start = time.perf_counter()
                sum(range(ADDITIONS))
                times.append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, cpus)
    medians = [median(times) for times in took.values()]
    return min(medians) / max(medians)
