"""Environments with many agents, vectorized.

Everything an environment's agents have travels in one record of bytes, which is all that the vector
environment below knows of them: so they are stepped by every backend, and at its speed.
"""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

# Loaded when they are used: workers import a module of this package, and need few of these.
__getattr__, __dir__ = lazy_exports(__name__)
