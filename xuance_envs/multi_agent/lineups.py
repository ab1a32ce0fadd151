"""The agents that play in a step, and where what they have goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_rows import Row
from xuance_envs.multi_agent.masks import MaskRow

__all__ = ["Lineup", "Scalars", "getter"]


class Lineup:
    """The agents that play in a step, and where what they have goes.

    Args:
        agents: their ids.
        places: where they are in the team.
        rows: where their observations go.
        actions: gives the action of each, of a record of actions.
        masked: those whose observations have masks: the place among the agents, and where it goes.
    """

    __slots__ = ("actions", "agents", "get", "masked", "none", "places", "rows")

    def __init__(
        self,
        agents: list[Any],
        places: list[int],
        rows: list[Row],
        actions: Callable[[NDArray[np.uint8]], Iterable[Any]],
        masked: list[tuple[int, MaskRow]],
    ) -> None:
        self.agents = agents
        self.places = places
        self.rows = rows
        self.actions = actions
        self.masked = masked
        self.get = getter(agents)
        self.none = (False,) * len(agents)


def getter(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gets a tuple of the values under some keys."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda values: tuple(values[key] for key in keys)


class Scalars(dict[int, Any]):
    """NumPy's scalars of small integers, which take a while to make.

    Args:
        kind: their type.
    """

    def __init__(self, kind: Any) -> None:
        super().__init__((i, kind(i)) for i in range(64))
        self._kind = kind

    def __missing__(self, number: int) -> Any:
        return self._kind(number)
