"""States that are lent to actors: each is given to Ray once, however many actors are to have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.driver import StateTransfer
from xuance_envs.engine.ray.cluster import RayCluster

__all__ = ["TRANSFER_THRESHOLD", "ObjectStoreTransfer"]

TRANSFER_THRESHOLD = 100 * 1024
"""From so many bytes on for one group, states are lent: as many as Ray lets a call carry by itself
before it makes an object of them, anew for each call."""


class ObjectStoreTransfer(StateTransfer):
    """Lends actors objects of Ray's, which are gone once nobody refers to them."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        # By its identity, a state that has been lent, and what Ray knows it by.
        self._transferred: dict[int, tuple[bytes, Any]] = {}

    @override
    def should_transfer(self, states: Sequence[Any]) -> bool:
        return sum(map(len, states)) > TRANSFER_THRESHOLD

    @override
    def export(self, states: Sequence[Any]) -> Sequence[Any]:
        for state in states:
            if id(state) not in self._transferred:
                self._transferred[id(state)] = state, self._cluster.put(state)
        return [self._transferred[id(state)][1] for state in states]

    @override
    def release(self) -> None:
        self._transferred = {}
