"""CPU time and memory of worker processes, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from xuance_envs.engine.process.guardian import descendants


class Usage(NamedTuple):
    """CPU seconds and bytes of memory of a process and its descendants."""

    cpu: float
    memory: int


def usage_of(pids: Iterable[int]) -> dict[int, Usage]:
    """Return the usage of running processes by id; empty on systems without ``/proc``."""
    stats = {}
    with suppress(FileNotFoundError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                stats[int(name)] = file.read().rpartition(b")")[2].split()
    parent_of = {pid: int(fields[1]) for pid, fields in stats.items()}
    found = {}
    for pid in pids:
        if pid in stats:
            members = [pid, *descendants(pid, parent_of)]
            ticks = sum(int(ticks) for member in members for ticks in stats[member][11:15])
            found[pid] = Usage(ticks / os.sysconf("SC_CLK_TCK"), sum(map(_own_memory, members)))
    return found


def _own_memory(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0
