"""Clients of the environment server."""

from xuance_envs.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
