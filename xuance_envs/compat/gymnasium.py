"""Drop-in replacements for Gymnasium's vector environments: only the import changes.

Both classes derive from Gymnasium's classes of the same name. Results and errors are those of
Gymnasium's classes, except for the differences that the documentation lists under "Migrating".
"""

from __future__ import annotations

from xuance_envs.compat.gymnasium_async import AsyncVectorEnv
from xuance_envs.compat.gymnasium_sync import SyncVectorEnv

__all__ = ["AsyncVectorEnv", "SyncVectorEnv"]
