"""Infos in messages, with one dict per environment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from xuance_envs.remote.wire.nodes import WireError, shortened
from xuance_envs.remote.wire.values import from_wire, to_wire

logger = logging.getLogger("xuance_envs")


def infos_from_wire(node: Any, count: int) -> list[dict[Any, Any]]:
    if not isinstance(node, list) or len(node) != count:
        raise WireError(f"expected a list of {count} infos, got {shortened(node)}")
    infos = [from_wire(info) for info in node]
    for info in infos:
        if not isinstance(info, dict):
            raise WireError(f"expected infos to be dicts, got {shortened(info)}")
    return infos


def drop_unsendable(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a dict without values that cannot be sent; log each such key once."""
    sendable = {}
    for key, value in info.items():
        try:
            to_wire({key: value})
            sendable[key] = value
        except WireError as error:
            _warn_unsendable(f"{key!r}", f"{error}")
    return sendable


@lru_cache(256)
def _warn_unsendable(key: str, reason: str) -> None:
    logger.warning("the info key %s is not sent to clients: %s", key, reason)
