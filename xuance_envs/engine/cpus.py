"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["available_cpus"]


def available_cpus() -> int:
    """Counts the CPUs this process may use, at least 1.

    The smaller of its CPU affinity and its control group's quota (version 2 or 1), rounded up.
    """
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def _cgroup_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """CPUs' worth of time the control groups above this process allow, None for no limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, read = root, _quota_v2
        elif "cpu" in controllers.split(","):
            top, read = root / controllers, _quota_v1
        else:
            continue
        # A container often sees its own group as the root, so the path may not exist under it.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == top or top in folder.parents:
                quotas += read(folder)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> list[float]:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return []
    return [] if quota == "max" else [int(quota) / int(period)]


def _quota_v1(folder: Path) -> list[float]:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return []
    return [quota / period] if quota > 0 else []
