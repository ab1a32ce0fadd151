"""Protocol constants of client and server."""

from __future__ import annotations

PROTOCOL_VERSION = 4
"""Version of the protocol; client and server must use the same version."""

API_PREFIX = "/api/v1"

MAX_SEED = 2**64
"""Exclusive upper bound of seeds."""
