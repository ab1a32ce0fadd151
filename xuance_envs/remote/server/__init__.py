"""HTTP server that hosts environments for many users."""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
