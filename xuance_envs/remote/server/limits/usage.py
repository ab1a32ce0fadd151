"""CPU time and memory of worker processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import psutil


class Usage(NamedTuple):
    """CPU seconds and bytes of memory of a process and its descendants."""

    cpu: float
    memory: int


def usage_of(pids: Iterable[int]) -> dict[int, Usage]:
    """Return the usage of running descendants of this process, by process id."""
    running = {process.pid: process for process in psutil.Process().children(recursive=True)}
    children: dict[int, list[int]] = defaultdict(list)
    for pid, process in running.items():
        with suppress(psutil.Error):
            children[process.ppid()].append(pid)

    def tree(pid: int) -> Iterator[int]:
        yield pid
        for child in children[pid]:
            yield from tree(child)

    def total(pid: int) -> Usage:
        cpu, memory = zip(*(_own_usage(running[member]) for member in tree(pid)), strict=True)
        return Usage(sum(cpu), sum(memory))

    return {pid: total(pid) for pid in pids if pid in running}


def _own_usage(process: psutil.Process) -> Usage:
    """Return the usage of a process and its ended children, without shared memory."""
    with suppress(psutil.Error), process.oneshot():
        memory = process.memory_info()
        return Usage(sum(process.cpu_times()[:4]), memory.rss - getattr(memory, "shared", 0))
    return Usage(0.0, 0)
