"""The agents that play in a step, and where what they have goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row
from xuance_envs.engine.data.written_out import putter, taker
from xuance_envs.multi_agent.masks import MaskRow, Masks
from xuance_envs.multi_agent.record import Record

__all__ = ["NO_FORM", "Lineup", "Lineups"]

_STRUCT_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_STRUCT_CODES |= {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}

_MAX_LINEUPS = 256
"""How many lineups are kept: agents that come and go make many."""

_MOST_KNOWN = 1024
"""How many actions of a space are kept as what its agents are given."""

NO_FORM = None, None, None
"""What is known of infos before any have come."""


class Lineup:
    """The agents that play in a step, and where what they have goes.

    Args:
        agents: their ids.
        places: where they are in the team.
        size: of the team.
        rows: where their observations go.
        rewards: where the team's rewards go.
        actions: gives the action of each by agent, of a record of actions.
        masked: those whose observations have masks: the agent, and where its mask goes.

    Attributes:
        playing: ``(A,)`` bool: which agents of the team they are.
        put (Callable): stores the observation and the reward of each, those of others being 0;
            raises what tells that it does not take one.
        none (dict): the flags of agents of whom none has one.
        info_form (tuple): for who joins their infos: what the last ones were like.
        info_changes (int): how often they were otherwise than the last ones.
    """

    __slots__ = (
        "_pack_rewards",
        "_rewards",
        "_rows",
        "actions",
        "agents",
        "info_changes",
        "info_form",
        "masked",
        "none",
        "places",
        "playing",
        "put",
    )

    def __init__(
        self,
        agents: list[Any],
        places: list[int],
        size: int,
        rows: Sequence[Row],
        rewards: memoryview,
        actions: Callable[[NDArray[np.uint8]], dict[Any, Any]],
        masked: list[tuple[Any, MaskRow]],
    ) -> None:
        self.agents = agents
        self.places = places
        self.playing = np.zeros(size, np.bool_)
        self.playing[places] = True
        self.actions = actions
        self.masked = masked
        self.none = dict.fromkeys(agents, False)
        self.info_form: tuple[Any, Any, Any] = NO_FORM
        self.info_changes = 0
        self._rows = dict(zip(agents, rows, strict=True))
        self._rewards = rewards
        self._pack_rewards = _struct_of("d", 8, places, size).pack_into
        self.put = self._putter()

    def take_row(self, agent: Any, row: Row) -> None:
        """Has the observation of an agent go to another row."""
        self._rows[agent] = row
        self.put = self._putter()

    def _putter(self) -> Callable[[Mapping[Any, Any], Mapping[Any, Any]], None]:
        in_order = [agent for _, agent in sorted(zip(self.places, self.agents, strict=True))]
        rows = [self._rows[agent] for agent in in_order]
        return putter(in_order, rows, self._pack_rewards, self._rewards)


class Lineups:
    """The lineups of a team, each made when it first plays.

    Args:
        record: how the team's records are laid out.
        rows: by place, where the observation of an agent goes; changed by whoever finds a better
            one.
        rewards: where rewards go.
        masks: of the agents.
    """

    def __init__(self, record: Record, rows: list[Row], rewards: memoryview, masks: Masks) -> None:
        team = record.team
        self._team = team
        self._place = {agent: i for i, agent in enumerate(team.agents)}
        self._rows = rows
        self._rewards = rewards
        self._masks = masks
        self._actions = np.zeros(record.action_dtype.itemsize, np.uint8)
        fields = record.fields(self._actions, record.action_dtype)
        self._read_actions = [rows.reader() for rows in record.action_rows(fields)]
        self._scalars: dict[int, Any] = {}  # of small actions
        self._action_order = [place for group in team.groups for place in group.places]
        self._known: dict[tuple[Any, ...], Lineup] = {}

    def of(self, agents: Iterable[Any]) -> Lineup:
        """The lineup of some agents.

        Raises:
            BadValueError: the team has no such agent, or one is there twice.
        """
        try:
            key = tuple(agents)
        except TypeError:
            raise BadValueError(
                f"expected agents to be a list of those that live, got {describe(agents)}"
            ) from None
        lineup = self._known.get(key)
        return self._made(key) if lineup is None else lineup

    def _made(self, key: tuple[Any, ...]) -> Lineup:
        for agent in key:
            if agent not in self._place:
                raise BadValueError(
                    f"agent {agent!r} is not in possible_agents: expected one of "
                    f"{list(self._team.agents)}"
                )
        if len(set(key)) != len(key):
            raise BadValueError(f"expected each agent once in agents, got {list(key)}")
        places = [self._place[agent] for agent in key]
        if len(self._known) >= _MAX_LINEUPS:
            self._known.clear()
        masks = self._masks
        lineup = self._known[key] = Lineup(
            list(key),
            places,
            len(self._place),
            [self._rows[place] for place in places],
            self._rewards,
            self._taker(key, places),
            [
                (agent, masks.rows[place])
                for agent, place in zip(key, places, strict=True)
                if place in masks.in_observations
            ],
        )
        return lineup

    def _taker(
        self, agents: Sequence[Any], places: list[int]
    ) -> Callable[[NDArray[np.uint8]], dict[Any, Any]]:
        """What gives the actions of the agents at some places, in that order, from a record."""
        own, readers, order = self._actions, self._read_actions, self._action_order
        space = self._team.groups[0].action_space
        if len(readers) == 1 and isinstance(space, spaces.Discrete):
            dtype = np.dtype(space.dtype)
            code = _STRUCT_CODES[dtype.str[1:]]
            unpack = _struct_of(code, dtype.itemsize, places, len(order)).unpack_from
            kind, known = dtype.type, self._scalars
            if not known:  # NumPy's scalars take a while to make
                last = int(space.start) + min(int(space.n), _MOST_KNOWN)
                known.update((i, kind(i)) for i in range(int(space.start), last))
            return taker(agents, places, unpack, known, kind)
        at = [order.index(place) for place in places]

        def read(record: NDArray[np.uint8]) -> dict[Any, Any]:
            own[:] = record
            values = [action for read in readers for action in read()]
            return {agent: values[i] for agent, i in zip(agents, at, strict=True)}

        return read


def _struct_of(code: str, size: int, places: Sequence[int], count: int) -> Struct:
    """Of so many numbers in a row, those at some places; the others are skipped."""
    taken = set(places)
    return Struct("".join([code if i in taken else f"{size}x" for i in range(count)]))
