"""Sets of active agents, and access to their fields in the record, such as action masks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.reward_rows import Rewards
from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row
from xuance_envs.engine.data.unrolled_loops import make_dict_builder, make_dict_reader
from xuance_envs.errors import counted
from xuance_envs.multi_agent.record_layout import RecordLayout
from xuance_envs.multi_agent.team import MASK, Team

_MAX_CACHED_ACTIONS = 1024  # maximum number of cached NumPy scalars for Discrete actions

# Errors that fast paths raise for unsupported or missing values.
STORE_ERRORS = (
    *(TypeError, ValueError, NotImplementedError, LookupError, DeprecationWarning, struct.error),
)

NO_INFO_TEMPLATE = None, None, None  # before any info has been received


class MaskRow:
    """Storage of one agent's mask."""

    __slots__ = ("_array", "_view")

    def __init__(self, array: NDArray[np.bool_]) -> None:
        self._array = array
        # Accepts only bool arrays of the same length.
        self._view = memoryview(array)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def buffer_for(self, mask: Any) -> Row:
        """Return the fastest storage for masks of this type and length; it may reject others."""
        is_bools = type(mask) is np.ndarray and mask.dtype == np.bool_
        return self._view if is_bools else self

    def __setitem__(self, key: slice, mask: Any) -> None:
        """Store a mask, in which nonzero means allowed. None allows every action."""
        if type(mask) is np.ndarray and mask.dtype == np.bool_:
            try:
                self._view[key] = mask  # type: ignore[call-overload]  # as above
                return
            except (TypeError, ValueError):
                pass  # reported below
        elif mask is None:
            self._array[...] = True
            return
        elif type(mask) is tuple and mask and all([np.ndim(part) == 1 for part in mask]):
            mask = np.concatenate(mask)
        try:
            given = np.asarray(mask)
        except ValueError:
            given = np.empty((), object)
        if given.shape != self._array.shape or given.dtype.kind not in "biuf":
            expected = f"{counted(len(self._array), 'bool')}, one per action"
            raise BadValueError(f"expected {expected}, got {describe(mask)}")
        np.not_equal(given, 0, out=self._array)


class Masks:
    def __init__(self, team: Team, fields: Mapping[str, NDArray[Any]]) -> None:
        self.rows: dict[int, MaskRow] = {}
        self.in_observations: set[int] = set()  # places of agents whose masks they observe
        self.in_infos: set[int] = set()
        self.any_received = False
        self._gives_masks = fields["gives_masks"]
        self._of_groups: list[NDArray[np.bool_]] = []
        for group in team.groups:
            if group.mask is None:
                continue
            masks = fields[f"{group.name}.mask"]
            self._of_groups.append(masks)
            self.rows |= {place: MaskRow(masks[i]) for i, place in enumerate(group.places)}
            (self.in_observations if group.observes_mask else self.in_infos).update(group.places)

    def begin(self) -> None:
        """Allow every action in a record that was set to zeros."""
        self._gives_masks[...] = self.any_received
        for masks in self._of_groups:
            masks[...] = True

    def put(self, agent: Any, row: MaskRow, mask: Any) -> None:
        try:
            row[:] = mask
        except BadValueError as error:
            raise BadValueError(f"agent {agent!r}: invalid {MASK}: {error}") from None
        if not self.any_received:
            self._gives_masks[...] = self.any_received = True


class AgentSet:
    """The active agents of a step, with readers and writers for their data."""

    def __init__(
        self,
        record: RecordLayout,
        rows: list[Row],
        rewards: Rewards,
        masks: Masks,
        agents: tuple[Any, ...],
    ) -> None:
        place_of = {agent: i for i, agent in enumerate(record.team.agents)}
        for agent in agents:
            if agent not in place_of:
                raise BadValueError(
                    f"agent {agent!r} is not in possible_agents: expected one of {list(place_of)}"
                )
        if len(set(agents)) != len(agents):
            raise BadValueError(f"expected each agent at most once in agents, got {list(agents)}")
        self.agents = list(agents)
        self.places = places = [place_of[agent] for agent in agents]
        self.active = np.zeros(len(place_of), np.bool_)
        self.active[places] = True
        self.actions = _action_reader(record, agents, places)
        pairs = list(zip(places, agents, strict=True))
        observed = masks.in_observations
        self.masked = [(agent, masks.rows[place]) for place, agent in pairs if place in observed]
        self.no_flags = dict.fromkeys(agents, False)
        self.no_infos: dict[Any, Any] = {agent: {} for agent in agents}
        self.info_template: tuple[Any, Any, Any] = NO_INFO_TEMPLATE
        self.info_template_misses = 0
        self._rows = rows
        self._rewards = rewards.target
        self._pack_rewards = _reward_packer(self._rewards, places, len(place_of))
        self._in_order = dict(sorted(pairs))
        self.update_rows()

    def update_rows(self) -> None:
        """Let ``put`` store observations in the current rows."""
        agents, rows = self._in_order.values(), [self._rows[place] for place in self._in_order]
        self.put = make_dict_reader([*agents], rows, self._pack_rewards, self._rewards)


def _action_reader(
    record: RecordLayout, agents: Sequence[Any], places: list[int]
) -> Callable[[NDArray[np.uint8]], dict[Any, Any]]:
    """Create a function that reads the agents' actions from a record."""
    order = [place for group in record.team.groups for place in group.places]
    space = record.team.groups[0].action_space
    if len(record.groups) == 1 and isinstance(space, spaces.Discrete):
        dtype, first = np.dtype(space.dtype), int(space.start)
        # For integers, NumPy and struct have the same codes.
        unpack = _struct_of(dtype.char, dtype.itemsize, places, len(order)).unpack_from
        scalars = _scalars(dtype.char, first, first + min(int(space.n), _MAX_CACHED_ACTIONS))
        return make_dict_builder(agents, places, unpack, scalars, dtype.type)
    own, readers = record.action_buffer
    at = [order.index(place) for place in places]

    def read(given: NDArray[np.uint8]) -> dict[Any, Any]:
        own[:] = given
        values = [action for read in readers for action in read()]
        return {agent: values[i] for agent, i in zip(agents, at, strict=True)}

    return read


@lru_cache
def _scalars(code: str, first: int, end: int) -> dict[int, Any]:
    """Return NumPy scalars by their values; creating them in every step is slow."""
    kind = np.dtype(code).type
    return {i: kind(i) for i in range(first, end)}


def _reward_packer(target: Any, places: Sequence[int], size: int) -> Callable[..., None]:
    """Create a function that stores rewards; its arguments are in ascending order of ``places``."""
    if isinstance(target, memoryview):
        return _struct_of("d", 8, places, size).pack_into
    in_order = sorted(places)

    def pack(_: Any, __: int, *vectors: Any) -> None:
        for place, vector in zip(in_order, vectors, strict=True):
            target[place] = vector

    return pack


def _struct_of(code: str, size: int, places: Sequence[int], count: int) -> struct.Struct:
    """Create a struct that reads ``places`` among ``count`` numbers and skips the others."""
    taken = set(places)
    return struct.Struct("".join([code if i in taken else f"{size}x" for i in range(count)]))
