"""Record of a group's progress, in memory that another process may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

NO_ACTIVE_ENV = 0  # value of the slot while no environment runs; 1 is the group's first environment


class ActiveEnvSlot(Protocol):
    """Slot for the running environment: ``at[0]`` is its place + 1, or NO_ACTIVE_ENV."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


@dataclass(frozen=True)
class ProgressRecord:
    at: ActiveEnvSlot = field(default_factory=lambda: [NO_ACTIVE_ENV])
    times: memoryview | None = None
