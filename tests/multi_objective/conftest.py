"""The fixtures that run a test over every backend."""

from __future__ import annotations

from backends import make, quick_forkserver

__all__ = ["make", "quick_forkserver"]
