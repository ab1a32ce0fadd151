"""Checks that a machine is idle and its cores are equal before measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["BUSY", "EQUAL", "Look", "busy_fraction", "look", "slowest_core", "wait_until_quiet"]

BUSY = 0.1
"""Figures are unreliable if other processes use more than this share of CPU time."""

EQUAL = 0.9
"""Figures are unreliable if the slowest core's speed relative to the fastest is below this."""

LOOK_SECONDS = 0.6
"""Duration of the check for other processes."""

PAUSE = 5.0
"""Seconds between two checks of a busy machine."""

TURNS, ADDITIONS = 7, 200_000
"""Timings per core, and additions per timing."""


@dataclass(frozen=True)
class Look:
    """The result of a check: other processes' CPU share, and the slowest core's relative speed."""

    busy: float | None
    slowest_core: float | None

    @property
    def quiet(self) -> bool:
        """True if figures are reliable now, or if this is unknown."""
        return (self.busy or 0.0) <= BUSY and (self.slowest_core or 1.0) >= EQUAL

    def __str__(self) -> str:
        if self.busy is None or self.slowest_core is None:
            return "the use by other processes is unknown on this system"
        return f"CPU use of other processes {self.busy:.0%}, slowest core {self.slowest_core:.0%}"


def look() -> Look:
    """Check the machine, in about a second."""
    return Look(busy_fraction(), slowest_core())


def wait_until_quiet(
    seconds: float, say: Callable[[str], None], looking: Callable[[], Look] = look
) -> tuple[Look, float]:
    """Wait for an idle machine, for a limited time; return the last check and seconds waited."""
    start, waited = time.monotonic(), 0.0
    seen = looking()
    while not seen.quiet and waited < seconds:
        say(f"waiting for an idle machine: {seen}")
        time.sleep(min(PAUSE, seconds - waited))
        seen, waited = looking(), time.monotonic() - start
    if not seen.quiet:
        say(f"WARNING: {seen}; figures are unreliable")
    return seen, waited


def busy_fraction() -> float | None:
    """Return the share of CPU time in use (or stolen by a hypervisor)."""

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
    """Return the speed of the slowest core relative to the fastest."""
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
