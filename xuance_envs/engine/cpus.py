"""Number of CPUs available to this process, and state of the global interpreter lock (GIL)."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from xuance_envs.engine.system.cgroups import limits
from xuance_envs.engine.system.current import system


def available_cpus() -> int:
    """Return the smaller of CPU affinity and rounded-up cgroup quota, but at least 1."""
    cpus, quota = affinity_cpus(), _cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def affinity_cpus() -> int:
    """Return the number of CPUs in this process's affinity mask, ignoring quotas."""
    affinity = system.cpu_affinity()
    return len(affinity) if affinity is not None else os.cpu_count() or 1


def _cgroup_quota() -> float | None:
    """Return the CPU time limit of the control groups, in CPUs; None if unlimited."""
    return min(limits("cpu", {1: _quota_v1, 2: _quota_v2}), default=None)


def _quota_v2(folder: Path) -> float | None:
    quota, period = (folder / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    period = int((folder / "cpu.cfs_period_us").read_text())
    return quota / period if quota > 0 else None


def gil_is_enabled() -> bool:
    """Return whether the GIL is on; in a free-threaded Python, an import may turn it on."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    return True if is_enabled is None else bool(is_enabled())
