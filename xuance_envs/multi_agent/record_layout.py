"""The records in which everything that an environment's agents have travels: one per environment.

To the vector environment below, an observation is a row of bytes, and so is an action.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.multi_agent.team import Group, Team
from xuance_envs.vector_envs.action_writer import all_in_space

__all__ = ["ActionRecord", "GroupFields", "ObservationRecord", "RecordLayout"]

_ALIGNMENT = 64  # a cache line, which vector instructions like

_Field = tuple[str, DTypeLike, tuple[int, ...]]


class GroupFields:
    """Where the parts of a group's observations and actions are."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.observations = SpaceLayout(group.observation_space)
        self.actions = SpaceLayout(group.action_space)
        self.observation_names = _names(f"{group.name}.observation", self.observations)
        self.action_names = _names(f"{group.name}.action", self.actions)
        self._mask = f"{group.name}.mask"

    def fields(self) -> Iterator[_Field]:
        """The fields of its observations and masks."""
        yield from _of_leaves(self.observation_names, self.observations, len(self.group.agents))
        if self.group.mask is not None:
            yield self._mask, np.bool_, (len(self.group.agents), self.group.mask)

    def action_fields(self) -> Iterator[_Field]:
        """The fields of its actions."""
        yield from _of_leaves(self.action_names, self.actions, len(self.group.agents))

    def read(self, records: NDArray[Any]) -> Any:
        """Its observations in structured records."""
        if self.observations.flat:
            return records[self.observation_names[0]]
        return self.observations.unflatten([records[name] for name in self.observation_names])

    def read_masks(self, records: NDArray[Any]) -> Any:
        """Its masks in structured records; None without any."""
        return None if self.group.mask is None else records[self._mask]


def _names(stem: str, layout: SpaceLayout) -> list[str]:
    return [f"{stem}{k}" for k in range(len(layout.leaves))]


def _of_leaves(names: Sequence[str], layout: SpaceLayout, count: int) -> Iterator[_Field]:
    for name, leaf in zip(names, layout.leaves, strict=True):
        assert leaf.dtype is not None  # the team has no others
        yield name, leaf.dtype, (count, *leaf.shape)


class RecordLayout:
    """How a team's records are laid out.

    The largest fields come first, those of one size in the order of the dtype's names. Fields of 64
    bytes and more begin at multiples of 64, smaller ones lie close together, at multiples of their
    numbers' size; and a record's size is a multiple of 64.
    """

    def __init__(self, team: Team) -> None:
        self.team = team
        self.groups = [GroupFields(group) for group in team.groups]
        self.state = None if team.state_space is None else SpaceLayout(team.state_space)
        self.state_names = [] if self.state is None else _names("state", self.state)
        count = len(team.agents)
        fields: list[_Field] = [field for group in self.groups for field in group.fields()]
        if self.state is not None:
            for name, leaf in zip(self.state_names, self.state.leaves, strict=True):
                assert leaf.dtype is not None
                fields.append((name, leaf.dtype, leaf.shape))
        fields.append(("rewards", np.float64, (count,)))
        fields += [
            (name, np.bool_, (count,)) for name in ("terminated", "truncated", "acted", "alive")
        ]
        if not team.infos_by_agent:
            fields.append(("agent_mask", np.bool_, (count,)))
        fields.append(("gives_masks", np.bool_, ()))
        self.dtype = _record_dtype(fields)
        self.action_dtype = _record_dtype(
            [f for group in self.groups for f in group.action_fields()]
        )

    def fields(self, flat: NDArray[np.uint8], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        """Views of the fields of one record, ``(nbytes,)``."""
        record = flat.view(dtype)
        return {name: record[name][0, ...] for name in dtype.fields or ()}

    def structured(self, records: NDArray[np.uint8]) -> NDArray[Any]:
        """Records as rows of bytes, ``(n, nbytes)``, as a structured array ``(n,)``."""
        return np.ndarray(len(records), self.dtype, records)  # quicker than a view

    def structured_actions(self, records: NDArray[np.uint8]) -> NDArray[Any]:
        """The same for records of actions."""
        return np.ndarray(len(records), self.action_dtype, records)

    def observations(self, records: NDArray[Any]) -> Any:
        """The observations of structured records, by group unless the team is one."""
        if self.team.is_one:
            return self.groups[0].read(records)
        return {fields.group.name: fields.read(records) for fields in self.groups}

    def masks(self, records: NDArray[Any]) -> Any:
        """The masks of structured records, by group unless the team is one; None without any."""
        if self.team.is_one:
            return self.groups[0].read_masks(records)
        masks = {fields.group.name: fields.read_masks(records) for fields in self.groups}
        return {name: mask for name, mask in masks.items() if mask is not None} or None

    def states(self, records: NDArray[Any]) -> Any:
        """The states of structured records; None where none are carried."""
        if self.state is None:
            return None
        return self.state.unflatten([records[name] for name in self.state_names])

    def action_rows(self, record: Mapping[str, NDArray[Any]]) -> list[SpaceRows]:
        """By group, a place for the action of each of its agents, among fields of actions."""
        return [
            SpaceRows(
                fields.actions,
                [record[name] for name in fields.action_names],
                len(fields.group.agents),
            )
            for fields in self.groups
        ]

    def observation_rows(self, record: Mapping[str, NDArray[Any]]) -> list[SpaceRows]:
        """By group, a place for the observation of each of its agents, among fields."""
        return [
            SpaceRows(
                fields.observations,
                [record[name] for name in fields.observation_names],
                len(fields.group.agents),
            )
            for fields in self.groups
        ]


def _record_dtype(fields: Sequence[_Field]) -> np.dtype[Any]:
    """Big fields first, each from a cache line on; then small ones, close together.

    What a worker has written comes to the caller's core line by line.
    """
    formats = {name: np.dtype((dtype, shape)) for name, dtype, shape in fields}
    offsets: dict[str, int] = {}
    end = 0
    for name, dtype in sorted(formats.items(), key=lambda item: -item[1].itemsize):
        alignment = _ALIGNMENT if dtype.itemsize >= _ALIGNMENT else dtype.alignment
        offsets[name] = _round_up(end, alignment)
        end = offsets[name] + dtype.itemsize
    return np.dtype(
        {
            "names": list(formats),
            "formats": list(formats.values()),
            "offsets": [offsets[name] for name in formats],
            "itemsize": _round_up(end, _ALIGNMENT),
        }
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class _RecordSpace(spaces.Box):
    """Rows of bytes that a team's records are."""

    def __init__(self, team: Team, nbytes: int) -> None:
        super().__init__(0, 255, (nbytes,), np.uint8)
        self.team = team

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.team == other.team

    __hash__ = None  # type: ignore[assignment]  # as every space that compares

    def __repr__(self) -> str:
        return repr(self.team)


class ObservationRecord(_RecordSpace):
    """The space of a team's records of observations."""

    def __init__(self, team: Team) -> None:
        super().__init__(team, RecordLayout(team).dtype.itemsize)


class ActionRecord(_RecordSpace):
    """The space of a team's records of actions."""

    def __init__(self, team: Team) -> None:
        self._record = RecordLayout(team)
        super().__init__(team, self._record.action_dtype.itemsize)
        self._sample_spaces: list[spaces.Space[Any]] = []

    def contains(self, x: Any) -> bool:
        """Whether it is a record in which each agent's action is in its space."""
        if type(x) is not np.ndarray or x.dtype != np.uint8 or x.shape != self.shape:
            return False
        fields = self._record.fields(np.ascontiguousarray(x), self._record.action_dtype)
        for group, rows in zip(self.team.groups, self._record.action_rows(fields), strict=True):
            space = group.action_space
            if all_in_space(space, rows.flat):
                continue
            if not all(map(space.contains, rows.reader()())):
                return False
        return True

    def seed(self, seed: Any = None) -> Any:
        """Seeds what :meth:`sample` draws from."""
        self._sample_spaces = []
        return super().seed(seed)

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[Any]:
        """A record of an action of each agent, drawn from its space."""
        if not self._sample_spaces:
            generator = self.np_random
            drawn_from = [copy.deepcopy(group.action_space) for group in self.team.groups]
            for space in drawn_from:
                space.seed(int(generator.integers(2**31)))
            self._sample_spaces = drawn_from
        record = self._record
        flat = np.zeros(record.action_dtype.itemsize, np.uint8)
        groups = record.action_rows(record.fields(flat, record.action_dtype))
        for space, rows in zip(self._sample_spaces, groups, strict=True):
            for i in range(len(rows)):
                rows.row(i, lambda value: value, strict=False)[:] = space.sample()
        return flat
