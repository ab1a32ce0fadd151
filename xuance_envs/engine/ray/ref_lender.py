"""States that are lent to actors: each is given to Ray once, however many actors are to have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs.engine.driver import Lender
from xuance_envs.engine.ray.cluster import RayCluster

__all__ = ["LARGE", "RefLender"]

LARGE = 100 * 1024
"""From so many bytes on for one group, states are lent: as many as Ray lets a call carry by itself
before it makes an object of them, anew for each call."""


class RefLender(Lender):
    """Lends actors objects of Ray's, which are gone once nobody refers to them.

    Args:
        cluster: where they are.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        # By its identity, a state that has been lent, and what Ray knows it by.
        self._lent: dict[int, tuple[bytes, Any]] = {}

    def lends(self, states: Sequence[Any]) -> bool:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        return sum(map(len, states)) > LARGE

    def lend(self, states: Sequence[Any]) -> Sequence[Any]:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        for state in states:
            if id(state) not in self._lent:
                self._lent[id(state)] = state, self._cluster.put(state)
        return [self._lent[id(state)][1] for state in states]

    def take_back(self) -> None:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        self._lent = {}
