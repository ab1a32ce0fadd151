"""Sets of active agents, with precomputed access to their fields in the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.reward_rows import Rewards
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.engine.data.space_rows import Row
from xuance_envs.engine.data.unrolled_loops import make_dict_builder, make_dict_reader
from xuance_envs.multi_agent.masks import MaskRow, Masks
from xuance_envs.multi_agent.record_layout import RecordLayout

_MAX_AGENT_SETS = 256  # maximum number of cached sets: there can be many if agents join and leave
_MAX_CACHED_ACTIONS = 1024  # maximum number of cached NumPy scalars for Discrete actions

NO_INFO_TEMPLATE = None, None, None  # before any info has been received


class AgentSet:
    """The active agents of a step, with readers and writers for their data."""

    def __init__(
        self,
        agents: list[Any],
        places: list[int],
        size: int,
        rows: Sequence[Row],
        rewards: Rewards,
        actions: Callable[[NDArray[np.uint8]], dict[Any, Any]],
        masked: list[tuple[Any, MaskRow]],
    ) -> None:
        self.agents = agents
        self.places = places
        self.active = np.zeros(size, np.bool_)
        self.active[places] = True
        self.actions = actions
        self.masked = masked
        self.no_flags = dict.fromkeys(agents, False)
        self.no_infos: dict[Any, Any] = {agent: {} for agent in agents}
        self.info_template: tuple[Any, Any, Any] = NO_INFO_TEMPLATE
        self.info_template_misses = 0
        self._rows = dict(zip(agents, rows, strict=True))
        self._rewards = rewards.target
        self._pack_rewards = _reward_packer(self._rewards, places, size)
        self.put = self._make_writer()

    def replace_row(self, agent: Any, row: Row) -> None:
        """Replace the row that stores an agent's observation."""
        self._rows[agent] = row
        self.put = self._make_writer()

    def _make_writer(self) -> Callable[[Mapping[Any, Any], Mapping[Any, Any]], None]:
        in_order = [agent for _, agent in sorted(zip(self.places, self.agents, strict=True))]
        rows = [self._rows[agent] for agent in in_order]
        return make_dict_reader(in_order, rows, self._pack_rewards, self._rewards)


class AgentSetCache:
    """The agent sets of a team, each created on its first use."""

    def __init__(
        self, record: RecordLayout, rows: list[Row], rewards: Rewards, masks: Masks
    ) -> None:
        team = record.team
        self._team = team
        self._place = {agent: i for i, agent in enumerate(team.agents)}
        self._rows = rows
        self._rewards = rewards
        self._masks = masks
        self._actions = np.zeros(record.action_dtype.itemsize, np.uint8)
        self._read_actions = [rows.reader() for rows in record.action_rows(self._actions)]
        self._scalars: dict[int, Any] = {}  # NumPy scalars of Discrete actions
        self._action_order = [place for group in team.groups for place in group.places]
        self._cache: dict[tuple[Any, ...], AgentSet] = {}

    def of(self, agents: Sequence[Any]) -> AgentSet:
        """Return the agent set of these agents."""
        key = tuple(agents)
        agent_set = self._cache.get(key)
        return self._create(key) if agent_set is None else agent_set

    def _create(self, key: tuple[Any, ...]) -> AgentSet:
        for agent in key:
            if agent not in self._place:
                raise BadValueError(
                    f"agent {agent!r} is not in possible_agents: expected one of "
                    f"{list(self._team.agents)}"
                )
        if len(set(key)) != len(key):
            raise BadValueError(f"expected each agent at most once in agents, got {list(key)}")
        places = [self._place[agent] for agent in key]
        if len(self._cache) >= _MAX_AGENT_SETS:
            self._cache.clear()
        masks, rows = self._masks, [self._rows[place] for place in places]
        masked = [
            (agent, masks.rows[place])
            for agent, place in zip(key, places, strict=True)
            if place in masks.in_observations
        ]
        read_actions = self._make_action_reader(key, places)
        agent_set = self._cache[key] = AgentSet(
            list(key), places, len(self._place), rows, self._rewards, read_actions, masked
        )
        return agent_set

    def _make_action_reader(
        self, agents: Sequence[Any], places: list[int]
    ) -> Callable[[NDArray[np.uint8]], dict[Any, Any]]:
        """Create a function that reads the agents' actions from a record."""
        own, readers, order = self._actions, self._read_actions, self._action_order
        space = self._team.groups[0].action_space
        if len(readers) == 1 and isinstance(space, spaces.Discrete):
            dtype = np.dtype(space.dtype)
            # For integers, NumPy and struct have the same codes.
            unpack = _struct_of(dtype.char, dtype.itemsize, places, len(order)).unpack_from
            scalar_type, scalars = dtype.type, self._scalars
            if not scalars:  # creating NumPy scalars is slow
                last = int(space.start) + min(int(space.n), _MAX_CACHED_ACTIONS)
                scalars.update((i, scalar_type(i)) for i in range(int(space.start), last))
            return make_dict_builder(agents, places, unpack, scalars, scalar_type)
        at = [order.index(place) for place in places]

        def read(record: NDArray[np.uint8]) -> dict[Any, Any]:
            own[:] = record
            values = [action for read in readers for action in read()]
            return {agent: values[i] for agent, i in zip(agents, at, strict=True)}

        return read


def _reward_packer(target: Any, places: Sequence[int], size: int) -> Callable[..., None]:
    """Create a function that stores rewards; its arguments are in ascending order of ``places``."""
    if isinstance(target, memoryview):
        return _struct_of("d", 8, places, size).pack_into
    in_order = sorted(places)

    def pack(_: Any, __: int, *vectors: Any) -> None:
        for place, vector in zip(in_order, vectors, strict=True):
            target[place] = vector

    return pack


def _struct_of(code: str, size: int, places: Sequence[int], count: int) -> Struct:
    """Create a struct that reads ``places`` among ``count`` numbers and skips the others."""
    taken = set(places)
    return Struct("".join([code if i in taken else f"{size}x" for i in range(count)]))
