"""Assignment of workers to actors and nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class ActorAssignment:
    """The workers of one actor, and the node on which to start it."""

    workers: range
    node: str | None = None


def one_actor_per_worker(count: int) -> list[ActorAssignment]:
    return [ActorAssignment(range(k, k + 1)) for k in range(count)]


def one_actor_per_node(
    count: int, capacities: Mapping[str, tuple[int, int]]
) -> list[ActorAssignment]:
    """Assign consecutive workers to an actor per node, by free or (if too small) total capacity."""
    free = {node: now for node, (now, _) in capacities.items()}
    if sum(free.values()) < count:
        free = {node: idle for node, (_, idle) in capacities.items()}
    taken = dict.fromkeys(capacities, 0)
    left = count
    while left and any(free.values()):
        node = max(free, key=lambda each: (free[each], -taken[each]))
        free[node] -= 1
        taken[node] += 1
        left -= 1
    sizes: list[tuple[int, str | None]] = [(size, node) for node, size in taken.items() if size]
    if left:  # actors as large as the largest node, for nodes that join later
        most = max([1, *(total for _, total in capacities.values())])
        waiting = math.ceil(left / most)
        sizes += [((left + k) // waiting, None) for k in range(waiting)]
    ends = accumulate(size for size, _ in sizes)
    return [
        ActorAssignment(range(end - size, end), where)
        for end, (size, where) in zip(ends, sizes, strict=True)
    ]
