"""Where a group of environments keeps records of what it is doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["NO_ACTIVE_ENV", "ActiveEnvSlot", "ProgressRecord"]

NO_ACTIVE_ENV = 0
"""What says that no environment is at work; 1 stands for the group's first one."""


class ActiveEnvSlot(Protocol):
    """Where a group says which environment is at work: ``at[0] = place + 1``, or NO_ACTIVE_ENV."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


@dataclass(frozen=True)
class ProgressRecord:
    """Where a group keeps its records."""

    at: ActiveEnvSlot = field(default_factory=lambda: [NO_ACTIVE_ENV])
    times: memoryview | None = None
