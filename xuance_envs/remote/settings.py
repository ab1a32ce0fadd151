"""Public path of the settings of :class:`~xuance_envs.remote.server.Server`."""

from xuance_envs.remote.server.access.permissions import Permissions
from xuance_envs.remote.server.access.proxies import Proxies
from xuance_envs.remote.server.access.tokens import TOKENS_VARIABLE, Tokens
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
