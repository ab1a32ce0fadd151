"""CPU time and memory of worker processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from xuance_envs.engine.system.current import system


class Usage(NamedTuple):
    """CPU seconds and bytes of memory of a process and its descendants."""

    cpu: float
    memory: int


def usage_of(pids: Iterable[int]) -> dict[int, Usage]:
    """Return the usage of running processes by id; empty where the system does not report it."""
    return {pid: Usage(*usage) for pid, usage in system.process_usage(pids).items()}
