"""Transfer of large states through Ray's object store, where all actors share one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.ray.cluster import RayCluster

TRANSFER_THRESHOLD = 100 * 1024  # bytes from which Ray stores states once per call


class ObjectStoreTransfer(StateTransfer):
    """Transfers states as Ray objects, which Ray frees when no reference is left."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        # By id(state): the state, to keep its id unique, and Ray's reference.
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
