"""Which actors there are, and where: one for each worker, or for each machine's share of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ActorShare", "shares_of_cores", "shares_of_machines"]


@dataclass(frozen=True)
class ActorShare:
    """Workers that one actor has.

    Attributes:
        workers: their places among all.
        node: the id of the node it is to be on; None where Ray chooses.
    """

    workers: range
    node: str | None = None


def shares_of_cores(count: int) -> list[ActorShare]:
    """An actor for each of so many workers."""
    return [ActorShare(range(k, k + 1)) for k in range(count)]


def shares_of_machines(count: int, rooms: Mapping[str, tuple[int, int]]) -> list[ActorShare]:
    """An actor for each machine, with workers in a row, spread evenly over the room there is.

    Where there is too little now, it is the room that there will be when others leave; and for whom
    there is none then there are actors as large as a machine, for those that join.

    Args:
        count: how many workers.
        rooms: for how many there is room on each node, now and if it were idle.
    """
    free = {node: now for node, (now, _) in rooms.items()}
    if sum(free.values()) < count:
        free = {node: idle for node, (_, idle) in rooms.items()}
    taken = dict.fromkeys(rooms, 0)
    left = count
    while left and any(free.values()):
        node = max(free, key=lambda each: (free[each], -taken[each]))
        free[node] -= 1
        taken[node] += 1
        left -= 1
    sizes: list[tuple[int, str | None]] = [(size, node) for node, size in taken.items() if size]
    if left:
        most = max([1, *(total for _, total in rooms.values())])
        waiting = math.ceil(left / most)
        sizes += [((left + k) // waiting, None) for k in range(waiting)]
    shares = []
    first = 0
    for size, where in sizes:
        shares.append(ActorShare(range(first, first + size), where))
        first += size
    return shares
