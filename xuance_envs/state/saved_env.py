"""Saved state of one environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

Facts = Mapping[bytes, tuple[dict[str, Any], dict[str, str]]]
"""Descriptions of environments and their library versions, by digest."""


@dataclass(frozen=True)
class SavedEnv:
    elsewhere: ClassVar[str] = ""

    env: bytes
    digest: bytes
    replays: bool = False
    extras: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return len(self.env) + sum(map(len, self.extras.values()))
