"""Memory layout of the records that hold the data of all agents of an environment.

The underlying vectorized environment handles observations and actions as plain rows of bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
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


class SpaceFields:
    """Fields for the values of one space, possibly with leading axes, such as an agent axis."""

    def __init__(self, stem: str, space: spaces.Space[Any], *leading: int) -> None:
        self.layout = SpaceLayout(space, *leading)
        self._own_layout, self._leading = SpaceLayout(space), leading
        # Clients of a server and `struct` read records in the native byte order.
        self.fields: list[_Field] = [
            (f"{stem}{k}", np.dtype(leaf.dtype).newbyteorder("="), leaf.shape)
            for k, leaf in enumerate(self.layout.leaves)
        ]
        self._names = [name for name, _, _ in self.fields]

    def parts(self, records: Mapping[str, NDArray[Any]] | NDArray[Any]) -> list[NDArray[Any]]:
        return [records[name] for name in self._names]

    def read(self, records: NDArray[Any]) -> Any:
        """Read the values from structured records."""
        if self.layout.flat:
            return records[self._names[0]]
        return self.layout.unflatten(self.parts(records))

    def rows(self, record: Mapping[str, NDArray[Any]]) -> SpaceRows:
        """Return storage for each agent's value."""
        return SpaceRows(self._own_layout, self.parts(record), *self._leading)


class GroupFields:
    """Fields of a group's observations, masks and actions."""

    def __init__(self, group: Group) -> None:
        self.group = group
        size, name = len(group.agents), group.name
        self.observations = SpaceFields(f"{name}.observation", group.observation_space, size)
        self.actions = SpaceFields(f"{name}.action", group.action_space, size)
        self._mask = f"{name}.mask"
        self.fields = self.observations.fields.copy()  # of observations and masks
        if group.mask is not None:
            self.fields.append((self._mask, np.bool_, (size, group.mask)))

    def read_masks(self, records: NDArray[Any]) -> Any:
        """Read the group's masks from structured records; None if the group has no masks."""
        return None if self.group.mask is None else records[self._mask]


class RecordLayout:
    """Layout of a team's records, with the largest fields first."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.groups = [GroupFields(group) for group in team.groups]
        self.state = None if team.state_space is None else SpaceFields("state", team.state_space)
        count = len(team.agents)
        fields: list[_Field] = [field for group in self.groups for field in group.fields]
        if self.state is not None:
            fields += self.state.fields
        fields.append(("rewards", np.float64, (count, *shape_of_rewards(team.reward_space))))
        flags = ["terminated", "truncated", "acted", "alive"]
        if not team.infos_by_agent:
            flags.append("agent_mask")
        fields += [(name, np.bool_, (count,)) for name in flags]
        fields.append(("gives_masks", np.bool_, ()))
        self.dtype = _record_dtype(fields)
        actions = [field for group in self.groups for field in group.actions.fields]
        self.action_dtype = _record_dtype(actions)

    def fields(self, record: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return views of the fields of a record, which is an array ``(nbytes,)``."""
        return _views(record, self.dtype)

    def action_rows(self, record: NDArray[np.uint8]) -> list[SpaceRows]:
        """Return storage for each agent's action in one record, one entry per group of agents."""
        fields = _views(record, self.action_dtype)
        return [each.actions.rows(fields) for each in self.groups]

    @cached_property
    def action_buffer(self) -> tuple[NDArray[np.uint8], list[Callable[[], Iterable[Any]]]]:
        """A record of actions, and for each group a function that reads its actions from it."""
        record = np.zeros(self.action_dtype.itemsize, np.uint8)
        return record, [rows.reader() for rows in self.action_rows(record)]

    def structured(self, records: NDArray[np.uint8]) -> NDArray[Any]:
        """View records ``(n, nbytes)`` as a structured array ``(n,)``."""
        return np.ndarray(len(records), self.dtype, records)  # faster than a view

    def observations(self, records: NDArray[Any]) -> Any:
        """Read the observations: one batch if ``team.is_one``, else a dict by group."""
        if self.team.is_one:
            return self.groups[0].observations.read(records)
        return {fields.group.name: fields.observations.read(records) for fields in self.groups}

    def masks(self, records: NDArray[Any]) -> Any:
        """Read the masks, if any: an array if ``team.is_one``, else a dict by group."""
        if self.team.is_one:
            return self.groups[0].read_masks(records)
        masks = {fields.group.name: fields.read_masks(records) for fields in self.groups}
        return {name: mask for name, mask in masks.items() if mask is not None} or None

    def states(self, records: NDArray[Any]) -> Any:
        """Read the environments' states; None if they have no state."""
        return None if self.state is None else self.state.read(records)


def _views(record: NDArray[np.uint8], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    fields = record.view(dtype)
    return {name: fields[name][0, ...] for name in dtype.fields or ()}


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
            "itemsize": round_up(max(end, 1), _ALIGNMENT),  # 0 cannot be viewed
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
        all_rows = self._record.action_rows(np.ascontiguousarray(x))
        for group, rows in zip(self.team.groups, all_rows, strict=True):
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
        record = np.zeros(self._record.action_dtype.itemsize, np.uint8)
        all_rows = self._record.action_rows(record)
        for space, rows in zip(self._sample_spaces, all_rows, strict=True):
            for i in range(len(rows)):
                rows.row(i, strict=False)[:] = space.sample()
        return record
