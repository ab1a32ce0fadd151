"""Memory layout of the records that hold the data of all agents of an environment.

The underlying vectorized environment handles observations and actions as plain rows of bytes.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from xuance_envs.engine.data.memory_layout import round_up
from xuance_envs.engine.data.space_layout import SpaceLayout, shape_of_rewards
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.multi_agent.team import Group, Team
from xuance_envs.vector_envs.action_writer import all_in_space

_ALIGNMENT = 64  # a cache line, which also suits vector instructions

_Field = tuple[str, DTypeLike, tuple[int, ...]]


class GroupFields:
    """Fields of a group's observations, masks and actions."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.size = len(group.agents)
        self.observations = SpaceLayout(group.observation_space)
        self.actions = SpaceLayout(group.action_space)
        self.observation_names = _names(f"{group.name}.observation", self.observations)
        self.action_names = _names(f"{group.name}.action", self.actions)
        self._mask = f"{group.name}.mask"

    def fields(self) -> Iterator[_Field]:
        """Yield the fields of observations and masks."""
        yield from _of_leaves(self.observation_names, self.observations, self.size)
        if self.group.mask is not None:
            yield self._mask, np.bool_, (self.size, self.group.mask)

    def read(self, records: NDArray[Any]) -> Any:
        """Read the group's observations from structured records."""
        if self.observations.flat:
            return records[self.observation_names[0]]
        return self.observations.unflatten([records[name] for name in self.observation_names])

    def read_masks(self, records: NDArray[Any]) -> Any:
        """Read the group's masks from structured records; None if the group has no masks."""
        return None if self.group.mask is None else records[self._mask]


def _names(stem: str, layout: SpaceLayout) -> list[str]:
    return [f"{stem}{k}" for k in range(len(layout.leaves))]


def _of_leaves(names: Sequence[str], layout: SpaceLayout, *leading: int) -> Iterator[_Field]:
    for name, leaf in zip(names, layout.leaves, strict=True):
        assert leaf.dtype is not None  # checked by build_team
        yield name, leaf.dtype, (*leading, *leaf.shape)


class RecordLayout:
    """Layout of a team's records, with the largest fields first."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.groups = [GroupFields(group) for group in team.groups]
        self.state = None if team.state_space is None else SpaceLayout(team.state_space)
        self.state_names = [] if self.state is None else _names("state", self.state)
        count = len(team.agents)
        fields: list[_Field] = [field for group in self.groups for field in group.fields()]
        if self.state is not None:
            fields += _of_leaves(self.state_names, self.state)
        fields.append(("rewards", np.float64, (count, *shape_of_rewards(team.reward_space))))
        flags = ["terminated", "truncated", "acted", "alive"]
        if not team.infos_by_agent:
            flags.append("agent_mask")
        fields += [(name, np.bool_, (count,)) for name in flags]
        fields.append(("gives_masks", np.bool_, ()))
        self.dtype = _record_dtype(fields)
        actions = [_of_leaves(each.action_names, each.actions, each.size) for each in self.groups]
        self.action_dtype = _record_dtype([*itertools.chain(*actions)])

    def fields(self, flat: NDArray[np.uint8], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """Return views of the fields of one record, ``(nbytes,)``."""
        record = flat.view(dtype)
        return {name: record[name][0, ...] for name in dtype.fields or ()}

    def structured(self, records: NDArray[np.uint8]) -> NDArray[Any]:
        """View records ``(n, nbytes)`` as a structured array ``(n,)``."""
        return np.ndarray(len(records), self.dtype, records)  # faster than a view

    def observations(self, records: NDArray[Any]) -> Any:
        """Read the observations: one batch if the team ``is_one``, else a dict by group."""
        if self.team.is_one:
            return self.groups[0].read(records)
        return {fields.group.name: fields.read(records) for fields in self.groups}

    def masks(self, records: NDArray[Any]) -> Any:
        """Read the masks: an array if the team ``is_one``, else a dict by group; None if none."""
        if self.team.is_one:
            return self.groups[0].read_masks(records)
        masks = {fields.group.name: fields.read_masks(records) for fields in self.groups}
        return {name: mask for name, mask in masks.items() if mask is not None} or None

    def states(self, records: NDArray[Any]) -> Any:
        """Read the environments' states; None if they have no state."""
        if self.state is None:
            return None
        return self.state.unflatten([records[name] for name in self.state_names])

    def action_rows(self, record: Mapping[str, NDArray[Any]]) -> list[SpaceRows]:
        """Return storage for each agent's action, one entry per group of agents."""
        return [
            SpaceRows(each.actions, [record[name] for name in each.action_names], each.size)
            for each in self.groups
        ]

    def observation_rows(self, record: Mapping[str, NDArray[Any]]) -> list[SpaceRows]:
        """Return storage for each agent's observation, one entry per group of agents."""
        return [
            SpaceRows(each.observations, [record[k] for k in each.observation_names], each.size)
            for each in self.groups
        ]


def _record_dtype(fields: Sequence[_Field]) -> np.dtype[Any]:
    """Return a dtype with large fields aligned to cache lines and small fields packed."""
    formats = {name: np.dtype((dtype, shape)) for name, dtype, shape in fields}
    offsets: dict[str, int] = {}
    end = 0
    for name, dtype in sorted(formats.items(), key=lambda item: -item[1].itemsize):
        alignment = _ALIGNMENT if dtype.itemsize >= _ALIGNMENT else dtype.alignment
        offsets[name] = round_up(end, alignment)
        end = offsets[name] + dtype.itemsize
    return np.dtype(
        {
            "names": list(formats),
            "formats": list(formats.values()),
            "offsets": [offsets[name] for name in formats],
            "itemsize": round_up(end, _ALIGNMENT),
        }
    )


class _RecordSpace(spaces.Box):
    """Space of a team's records, as rows of bytes."""

    def __init__(self, team: Team, nbytes: int) -> None:
        super().__init__(0, 255, (nbytes,), np.uint8)
        self.team = team

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.team == other.team

    __hash__ = None  # type: ignore[assignment]  # as in all Gymnasium spaces, which define __eq__

    def __repr__(self) -> str:
        return repr(self.team)


class ObservationRecord(_RecordSpace):
    """Space of a team's observation records."""

    def __init__(self, team: Team) -> None:
        super().__init__(team, RecordLayout(team).dtype.itemsize)


class ActionRecord(_RecordSpace):
    """Space of a team's action records."""

    def __init__(self, team: Team) -> None:
        self._record = RecordLayout(team)
        super().__init__(team, self._record.action_dtype.itemsize)
        self._sample_spaces: list[spaces.Space[Any]] = []

    def contains(self, x: Any) -> bool:
        """Return whether every agent's action in the record is in its space."""
        if type(x) is not np.ndarray or x.dtype != np.uint8 or x.shape != self.shape:
            return False
        fields = self._record.fields(np.ascontiguousarray(x), self._record.action_dtype)
        for group, rows in zip(self.team.groups, self._record.action_rows(fields), strict=True):
            space = group.action_space
            if not (all_in_space(space, rows.flat) or all(map(space.contains, rows.reader()()))):
                return False
        return True

    def seed(self, seed: Any = None) -> Any:
        """Seed the generator of :meth:`sample`."""
        self._sample_spaces = []
        return super().seed(seed)

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[Any]:
        """Sample a record with one action per agent."""
        if not self._sample_spaces:
            drawn_from = [copy.deepcopy(group.action_space) for group in self.team.groups]
            for space in drawn_from:
                space.seed(int(self.np_random.integers(2**31)))
            self._sample_spaces = drawn_from
        record = self._record
        flat = np.zeros(record.action_dtype.itemsize, np.uint8)
        groups = record.action_rows(record.fields(flat, record.action_dtype))
        for space, rows in zip(self._sample_spaces, groups, strict=True):
            for i in range(len(rows)):
                rows.row(i, strict=False)[:] = space.sample()
        return flat
