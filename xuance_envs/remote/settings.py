"""Public path of the settings of :class:`~xuance_envs.remote.server.Server`."""

from xuance_envs.remote.server.access import TOKENS_VARIABLE, Permissions, Proxies, Tokens
from xuance_envs.remote.server.settings import Catalogue, Limits, Settings, is_loopback

__all__ = [
    "TOKENS_VARIABLE",
    "Catalogue",
    "Limits",
    "Permissions",
    "Proxies",
    "Settings",
    "Tokens",
    "is_loopback",
]
