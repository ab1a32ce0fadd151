"""Where a group of environments keeps records of what it is doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["NOWHERE", "At", "Recorder"]

NOWHERE = 0
"""What says that no environment is at work; 1 stands for the group's first one."""


class At(Protocol):
    """Where a group says which environment is at work: ``at[0] = place + 1``, or NOWHERE."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


@dataclass(frozen=True)
class Recorder:
    """Where a group keeps its records.

    Attributes:
        at: which environment is at work.
        times: memory for how long its steps take; None for memory of its own.
    """

    at: At = field(default_factory=lambda: [NOWHERE])
    times: memoryview | None = None
