"""What client and server agree on before they exchange messages."""

from __future__ import annotations

__all__ = ["API_PREFIX", "MAX_SEED", "PROTOCOL_VERSION"]

PROTOCOL_VERSION = 3
"""The version of the protocol; both sides must speak the same."""

API_PREFIX = "/api/v1"
"""Where the server has its routes."""

MAX_SEED = 2**64
"""Seeds are below it."""
