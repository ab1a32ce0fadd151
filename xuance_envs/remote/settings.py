"""Public path of the settings of :class:`~xuance_envs.remote.server.Server`."""

from __future__ import annotations

from xuance_envs.remote.server.settings import (
    TOKENS_VARIABLE,
    Catalogue,
    Limits,
    Permissions,
    Settings,
    Tokens,
    is_loopback,
)

__all__ = [
    "TOKENS_VARIABLE",
    "Catalogue",
    "Limits",
    "Permissions",
    "Settings",
    "Tokens",
    "is_loopback",
]
