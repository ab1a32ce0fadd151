"""The fixtures that run a test over every backend."""

from __future__ import annotations

from backends import make, make_either, make_local, make_on_all

__all__ = ["make", "make_either", "make_local", "make_on_all"]
