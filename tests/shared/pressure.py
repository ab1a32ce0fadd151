"""Time for which processes waited for a CPU, to judge durations on a machine that is busy."""

from __future__ import annotations

from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")


def seconds_stalled() -> float:
    """Return for how many seconds some process has waited since the system's start, if known."""
    try:
        return int(PRESSURE.read_text().partition("total=")[2].split()[0]) / 1e6
    except (OSError, IndexError):
        return 0.0
