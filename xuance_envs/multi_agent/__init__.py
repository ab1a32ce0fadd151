"""Vectorized multi-agent environments.

An adapter packs the data of all agents of an environment, except infos, into a record of bytes. The
underlying vectorized environments transfer it like any observation, in every backend.
"""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

# Loaded on first use, because workers import this package and need few of these names.
__getattr__, __dir__ = lazy_exports(__name__)
