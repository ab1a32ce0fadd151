"""Clients of an HTTP server of environments."""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
