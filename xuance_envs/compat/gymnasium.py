"""Gymnasium's vector environments over these groups: change the import, and nothing else.

Both classes derive from Gymnasium's own of the same name, return what those return, and raise what
they raise. What differs is listed in the documentation, under "Coming from Gymnasium".
"""

from __future__ import annotations

from xuance_envs.compat.gymnasium_async import AsyncVectorEnv
from xuance_envs.compat.gymnasium_sync import SyncVectorEnv

__all__ = ["AsyncVectorEnv", "SyncVectorEnv"]
