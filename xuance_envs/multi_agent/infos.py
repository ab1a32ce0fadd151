"""The infos of many agents: one dict where they live, and dicts by agent again for the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.step_infos import LazyInfos, StepInfos
from xuance_envs.engine.data.unrolled_loops import Cell, make_nested_reader
from xuance_envs.multi_agent.agent_sets import NO_INFO_TEMPLATE, AgentSet
from xuance_envs.multi_agent.masks import STORE_ERRORS, Masks
from xuance_envs.multi_agent.team import MASK, Team

__all__ = [
    "InfoMerger",
    "MultiAgentInfos",
    "infos_by_agent",
    "original_info_key",
    "shared_info_key",
]

_RESET_KEYS = ("reset_obs", "reset_info")
_ALL = slice(None)
_MAX_KEYS = 1000
"""How many keys of an agent's info are known."""


class MultiAgentInfos(LazyInfos):
    """The infos of one step: a dict for each environment, built when it is first looked at.

    ``infos[i]`` is ``{agent: {...}}`` with an entry for each agent that acted, after a reset for
    each that is alive, and beside these, under keys of their own, what an environment says that is
    no agent's. Masks of actions are not in it: they are the step's ``action_mask``. Looked at
    again, a dict is the same object; ``infos[i] = {...}`` replaces one.
    """

    def __init__(
        self, infos: StepInfos, team: Team, acted: NDArray[np.bool_], alive: NDArray[np.bool_]
    ) -> None:
        self._infos = infos
        self._team = team
        self._acted = acted
        self._alive = alive
        self._built = {}

    @property
    def are_empty(self) -> bool:
        """Whether no environment says anything."""
        batch, _ = self._infos.parts
        return not batch.rest and not any(layout.keys for layout in batch.layouts)

    def column(self, *path: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One value of every environment's info, without building any dict."""
        if len(path) == 1 and isinstance(path[0], tuple):
            (path,) = path
        if len(path) == 1:
            values, mask = self._infos.column(f":{path[0]}")
            # What the engine itself adds, as of a worker that was restarted, has no colon.
            return (values, mask) if mask.any() else self._infos.column(path[0])
        agent, key = path
        if agent not in self._team.agents:
            raise KeyError(f"no agent {agent!r}: expected one of {list(self._team.agents)}")
        return self._infos.column(f"{self._team.agents.index(agent)}:{key}")

    def columns(self, key: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One key of every agent's info."""
        found = [self.column(agent, key) for agent in self._team.agents]
        values, masks = zip(*found, strict=True)
        return np.stack(values, axis=1), np.stack(masks, axis=1)

    def replaced(self, rows: NDArray[np.intp], others: MultiAgentInfos) -> MultiAgentInfos:
        """The same infos, but for some environments others."""
        infos = MultiAgentInfos(self._infos, self._team, self._acted, self._alive)
        infos._built.update(zip(rows.tolist(), others, strict=True))
        return infos

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        list(self._infos)  # built together, which is quicker
        return (self[i] for i in range(len(self)))

    def _build(self, position: int) -> dict[Any, Any]:
        acted, alive = self._acted[position], self._alive[position]
        return infos_by_agent(self._infos[position], self._team, acted if acted.any() else alive)


def infos_by_agent(
    info: Mapping[Any, Any], team: Team, present: NDArray[np.bool_]
) -> dict[Any, Any]:
    """An environment's infos as it gave them, of the one dict that records travel with."""
    by_agent: dict[Any, Any] = {}
    if team.infos_by_agent:
        for place in np.flatnonzero(present).tolist():
            by_agent[team.agents[place]] = {}
    for name, value in info.items():
        agent_index, key = _split_key(name)
        if agent_index is not None and agent_index >= 0:
            by_agent.setdefault(team.agents[agent_index], {})[key] = value
        elif key not in _RESET_KEYS:
            by_agent[key] = value
    return by_agent


class InfoMerger:
    """Makes one dict of the infos of all agents, whose keys tell the agents; masks are taken out."""

    def __init__(self, team: Team, masks: Masks) -> None:
        self._masks = masks
        self._place = {agent: i for i, agent in enumerate(team.agents)}
        # By agent, what the keys of its info become in the dict of all; its mask's is MASK.
        self._names: dict[Any, dict[Any, Any]] = {agent: {} for agent in team.agents}

    def merge_infos(self, agent_set: AgentSet, infos: Any) -> dict[Any, Any]:
        """The infos of a step or a reset as one dict, which is good until the next one."""
        had_masks, store, merge_infos = agent_set.info_template
        if had_masks is self._masks.any_received:
            try:
                if store(infos):
                    return merge_infos  # type: ignore[no-any-return]
            except STORE_ERRORS:
                pass  # not of the form that they had
        return self._merge_new_form(agent_set, infos)

    def _merge_new_form(self, agent_set: AgentSet, infos: Any) -> dict[Any, Any]:
        """Takes infos of another form than the last ones of these agents had."""
        if not isinstance(infos, Mapping):
            raise BadValueError(f"expected infos by agent, got {describe(infos)}")
        merge_infos: dict[Any, Any] = {}
        for agent, info in infos.items():
            self._merge_agent_info(agent, info, merge_infos)
        if self._masks.any_received:
            for agent, place in zip(agent_set.agents, agent_set.places, strict=True):
                if MASK not in (infos.get(agent) or ()):
                    self._masks.allow_all(place)
        agent_set.info_template_misses += 1
        if (
            agent_set.info_template_misses & (agent_set.info_template_misses - 1) == 0
        ):  # ever rarer: all may be new ones
            agent_set.info_template = self._make_template(agent_set, infos, merge_infos)
        return merge_infos

    def _make_template(
        self, agent_set: AgentSet, infos: Mapping[Any, Any], merge_infos: dict[Any, Any]
    ) -> tuple[bool | None, Any, Any]:
        """Where what comes in infos of the same form goes, if nothing else has to be done then."""
        masks = self._masks
        if infos.keys() != agent_set.no_flags.keys() or None in infos.values():
            return NO_INFO_TEMPLATE
        cells_of: dict[Any, list[Cell]] = {}
        for agent, info in infos.items():
            place = self._place[agent]
            if masks.any_received and MASK not in info and masks.is_in_info(place):
                return NO_INFO_TEMPLATE
            cells = cells_of[agent] = []
            for key, value in info.items():
                name = self._names[agent][key]
                if name is MASK:
                    cells.append((key, masks.rows[place].buffer_for(value), _ALL))
                else:
                    cells.append((key, merge_infos, name))
        store = make_nested_reader(cells_of)
        return NO_INFO_TEMPLATE if store is None else (masks.any_received, store, merge_infos)

    def _merge_agent_info(self, agent: Any, info: Any, merge_infos: dict[Any, Any]) -> None:
        place = self._place.get(agent)
        if place is None:
            merge_infos[shared_info_key(agent)] = info
            return
        if info is None:  # as some environments have it in place of an empty one
            return
        if not isinstance(info, Mapping):
            raise BadValueError(
                f"agent {agent!r}: expected an info that is a dict, got {describe(info)}"
            )
        names = self._names[agent]
        if len(names) > _MAX_KEYS:  # keys that are ever new
            names.clear()
        row = self._masks.rows.get(place)
        for key, value in info.items():
            if key not in names:
                is_mask = key == MASK and row is not None
                name = f"{place}:{key}" if isinstance(key, str) else (place, key)
                names[key] = MASK if is_mask else name
            if names[key] is MASK:
                assert row is not None
                self._masks.put(agent, row, value)
            else:
                merge_infos[names[key]] = value


def shared_info_key(key: Any) -> Any:
    """What a key that is no agent's becomes in the dict of all."""
    return f":{key}" if isinstance(key, str) else (-1, key)


def original_info_key(name: Any) -> Any:
    """The key that an environment gave, of one in the dict that records travel with."""
    return _split_key(name)[1]


def _split_key(name: Any) -> tuple[int | None, Any]:
    """The place of the agent that a key is of, None if of none, and the key."""
    if isinstance(name, tuple):
        place, key = name
        return place, key
    place, colon, key = name.partition(":")
    if not colon:
        return None, name
    return (int(place) if place else None), key
