"""Record of a group's progress, in memory that another process may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

NO_ACTIVE_ENV = 0
"""Value of the slot while no environment runs; 1 is the group's first environment."""


class ActiveEnvSlot(Protocol):
    """Slot for the running environment: ``at[0] = place + 1``, or NO_ACTIVE_ENV."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


@dataclass(frozen=True)
class ProgressRecord:
    at: ActiveEnvSlot = field(default_factory=lambda: [NO_ACTIVE_ENV])
    times: memoryview | None = None
