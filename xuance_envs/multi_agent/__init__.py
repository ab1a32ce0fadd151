"""Vectorized multi-agent environments.

An adapter packs the data of all agents of an environment into one byte record. The underlying
vectorized environments transfer only these records, so that every backend works at full speed.
"""

from __future__ import annotations

from xuance_envs.lazy_exports import lazy_exports

# Loaded on first use, because workers import this package and need few of these names.
__getattr__, __dir__ = lazy_exports(__name__)
