"""Record of one multi-agent environment, with writers for its agents' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from xuance_envs.engine.data.reward_rows import rewards_of
from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row, SpaceRows
from xuance_envs.engine.data.unrolled_loops import Cell, make_nested_reader
from xuance_envs.engine.group.single_env import to_bool
from xuance_envs.multi_agent.agent_sets import NO_INFO_TEMPLATE, STORE_ERRORS, AgentSet, Masks
from xuance_envs.multi_agent.infos import merged_key, shared_info_key
from xuance_envs.multi_agent.record_layout import RecordLayout
from xuance_envs.multi_agent.team import MASK, Team

_ALL = slice(None)
_MAX_AGENT_SETS = 256  # maximum number of cached sets: there can be many if agents join and leave
_ALL_AGENTS = "__all__"  # key of a flag for all agents, as in RLlib

_FLAGS = ("terminations", "truncations")
_STEPPED = ("observations", "rewards", *_FLAGS)


class EnvRecord:
    def __init__(self, team: Team) -> None:
        record = RecordLayout(team)
        self._place = {agent: i for i, agent in enumerate(team.agents)}
        self.flat = np.zeros(record.dtype.itemsize, np.uint8)
        fields = self.fields = record.fields(self.flat)
        at: dict[int, tuple[SpaceRows, int]] = {}
        for own in record.groups:
            rows = own.observations.rows(fields)
            at |= {place: (rows, i) for i, place in enumerate(own.group.places)}
        self.state_arrays = [] if record.state is None else record.state.parts(fields)
        self.has_state = record.state is not None
        if record.state is not None:
            parts = [array[np.newaxis] for array in self.state_arrays]
            at[len(at)] = SpaceRows(record.state.layout, parts, 1), 0
        self._sources = [at[place] for place in range(len(at))]
        # By agent: the row of its observation; at last, the row of the state.
        self._rows: list[Row] = [rows.row(i) for rows, i in self._sources]
        self._rewards = rewards_of(fields["rewards"])
        self._flags = {name: memoryview(fields[name]) for name in ("terminated", "truncated")}  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        # Agents that were flagged as ended but that the environment still lists in ``agents``.
        self._ended = np.zeros(len(team.agents), np.bool_)
        self.episode_arrays = [self._ended, *self.state_arrays]
        self.masks = Masks(team, fields)
        make_set = partial(AgentSet, record, self._rows, self._rewards, self.masks)
        self._agent_set_of = lru_cache(_MAX_AGENT_SETS)(make_set)
        self.has_flags = self._ends_all = False
        self.set_agents([])

    # -- active agents ----------------------------------------------------------------

    def set_agents(self, agents: Sequence[Any]) -> None:
        """Set the active agents. Call this before storing their data."""
        self._ended[...] = False
        self.agent_set = self._agent_set_of(tuple(agents))
        self.prepared_for: AgentSet | None = None

    def prepare(self, agent_set: AgentSet) -> None:
        """Clear the record, except for the state, and mark these agents as active."""
        state = [array.copy() for array in self.state_arrays]
        self.flat[:] = 0
        for array, value in zip(self.state_arrays, state, strict=True):
            array[...] = value
        fields = self.fields
        fields["acted"][...] = fields["alive"][...] = agent_set.active
        self.masks.begin()
        self.has_flags = self._ends_all = False
        self.prepared_for = agent_set

    def start(self, agents: Sequence[Any], observations: Any) -> None:
        """Store the first observations of an episode."""
        self.set_agents(agents)
        agent_set = self.agent_set
        self.prepare(agent_set)
        self.fields["acted"][...] = False
        self.prepared_for = None
        self._store_new_agents(agent_set, {}, observations, "reset")

    def change_agents(self, remaining: Sequence[Any], observations: Any) -> Sequence[Any]:
        """Update and return the active agents after some have ended or joined."""
        before = self.agent_set
        following = self._agent_set_of(() if self._ends_all else tuple(remaining))
        if self.has_flags:
            self._ended |= self.fields["terminated"] | self.fields["truncated"]
        self._ended &= following.active  # an agent that returns is treated as new
        if following.agents and (self._ended == following.active).all():
            raise BadValueError(
                "step: expected an empty list as env.agents after all agents were terminated or "
                f"truncated, because the episode is over, got {remaining}"
            )
        if following is not before:
            self.fields["alive"][...] = following.active
            if not following.no_flags.keys() <= before.no_flags.keys():
                self._store_new_agents(following, before.no_flags, observations, "step")
            self.agent_set = following
            self.prepared_for = None
        return following.agents

    def _store_new_agents(
        self, agent_set: AgentSet, known: Mapping[Any, Any], observations: Any, call: str
    ) -> None:
        for k, agent in enumerate(agent_set.agents):
            if agent not in known:
                if agent not in observations:
                    raise BadValueError(
                        f"agent {agent!r}: expected an observation from {call}, because env.agents "
                        f"lists the agent, got observations of {list(observations)}"
                    )
                self._put_observation(agent_set, k, observations[agent])
        for agent, row in agent_set.masked:
            if agent not in known:
                self.masks.put(agent, row, observations[agent][MASK])

    # -- agents' data -----------------------------------------------------------------

    def put(self, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Store the results of a step of the active agents."""
        agent_set = self.agent_set
        try:
            agent_set.put(observations, rewards)
            no_flags = agent_set.no_flags
            if terminated != no_flags or truncated != no_flags or self.has_flags:
                self._store_flags(agent_set, terminated, truncated)
        except STORE_ERRORS:
            self._put_each(agent_set, observations, rewards, terminated, truncated)
        for agent, mask_row in agent_set.masked:
            self.masks.put(agent, mask_row, observations[agent][MASK])

    def _store_flags(self, agent_set: AgentSet, terminated: Any, truncated: Any) -> None:
        has_flags, self.has_flags = False, True  # stays True if this raises: flags may remain
        for name, flags in (("terminated", terminated), ("truncated", truncated)):
            stored = self._flags[name]
            if _ALL_AGENTS in flags:  # agents need no flags of their own
                flags = {**agent_set.no_flags, **flags}
            for agent, place in zip(agent_set.agents, agent_set.places, strict=True):
                flag = flags[agent]
                if type(flag) is not bool:
                    flag = _as_flag(agent, name, flag)
                stored[place] = flag
                has_flags = has_flags or flag
        self._ends_all = False
        if _ALL_AGENTS in terminated or _ALL_AGENTS in truncated:
            # Such a flag ends the agents whose own flags are False or missing.
            fields = [self.fields[name] for name in self._flags]
            unflagged = agent_set.active & ~np.logical_or(*fields)
            set_flags = [
                _as_flag(_ALL_AGENTS, name, flags.get(_ALL_AGENTS, False))
                for name, flags in zip(self._flags, (terminated, truncated), strict=True)
            ]
            for field, flag in zip(fields, set_flags, strict=True):
                field[unflagged] = flag
            self._ends_all = any(set_flags)
        self.has_flags = has_flags or self._ends_all

    def _put_each(self, agent_set: AgentSet, *stepped: Any) -> None:
        """Store results that the fast path rejected, agent by agent."""
        for name, values in zip(_STEPPED, stepped, strict=True):
            if not isinstance(values, Mapping):
                raise BadValueError(f"step: expected {name} by agent, got {describe(values)}")
            for agent in agent_set.agents:
                if agent not in values and not (name in _FLAGS and _ALL_AGENTS in values):
                    raise BadValueError(
                        f"agent {agent!r}: expected an entry in the {name} that step returned, "
                        f"because the agent was active, got {list(values)}"
                    )
        observations, rewards, *flags = stepped
        for k, agent in enumerate(agent_set.agents):
            self._put_observation(agent_set, k, observations[agent])
            try:
                self._rewards.put(agent_set.places[k], rewards[agent])
            except BadValueError as error:
                raise BadValueError(f"agent {agent!r}: {error}") from None
        self._store_flags(agent_set, *flags)

    def _put_observation(self, agent_set: AgentSet, k: int, observation: Any) -> None:
        try:
            replaced = self.store(agent_set.places[k], observation)
        except BadValueError as error:
            raise BadValueError(
                f"agent {agent_set.agents[k]!r}: invalid observation: {error}"
            ) from None
        if replaced:
            self._agent_set_of.cache_clear()  # they store observations in the old row
            agent_set.update_rows()

    def store(self, i: int, value: Any) -> bool:
        """Store the observation of agent i or, at -1, the state; return whether its row changed."""
        try:
            self._rows[i][_ALL] = value
            return False
        except STORE_ERRORS:
            rows, k = self._sources[i]
            self._rows[i] = rows.row(k, strict=False)
        self._rows[i][:] = value
        return True

    # -- infos ------------------------------------------------------------------------

    def merge_infos(self, infos: Any) -> dict[Any, Any]:
        """Merge the agents' infos, without masks, into one dict, valid until the next call."""
        agent_set, has_masks = self.agent_set, self.masks.any_received
        if infos == agent_set.no_infos and not has_masks:
            return {}
        had_masks, store, merged = agent_set.info_template
        if had_masks is has_masks:
            try:
                if store(infos):
                    return merged  # type: ignore[no-any-return]
            except STORE_ERRORS:
                pass  # the keys or types have changed
        return self._merge_new_form(agent_set, infos)

    def _merge_new_form(self, agent_set: AgentSet, infos: Any) -> dict[Any, Any]:
        """Merge infos whose keys or types differ from those of the previous call."""
        if not isinstance(infos, Mapping):
            raise BadValueError(f"expected a dict of infos by agent, got {describe(infos)}")
        merged: dict[Any, Any] = {}
        for agent, info in infos.items():
            self._merge_agent_info(agent, info, merged)
        if self.masks.any_received:
            for agent, place in zip(agent_set.agents, agent_set.places, strict=True):
                if place in self.masks.in_infos and MASK not in (infos.get(agent) or ()):
                    self.masks.rows[place][:] = None  # allows every action
            if not infos.keys() <= agent_set.no_flags.keys():
                self.prepared_for = None  # clears masks of agents that do not act
        misses = agent_set.info_template_misses = agent_set.info_template_misses + 1
        if misses & (misses - 1) == 0:  # only after 1, 2, 4, ..., in case the keys keep changing
            agent_set.info_template = self._make_template(agent_set, infos, merged)
        return merged

    def _make_template(
        self, agent_set: AgentSet, infos: Mapping[Any, Any], merged: dict[Any, Any]
    ) -> tuple[bool | None, Any, Any]:
        """Create a fast path for infos with these keys, unless they need special handling."""
        masks = self.masks
        if infos.keys() != agent_set.no_flags.keys() or None in infos.values():
            return NO_INFO_TEMPLATE
        cells_of: dict[Any, list[Cell]] = {}
        for agent, info in infos.items():
            place = self._place[agent]
            if masks.any_received and MASK not in info and place in masks.in_infos:
                return NO_INFO_TEMPLATE
            cells = cells_of[agent] = []
            for key, value in info.items():
                if key == MASK and place in masks.rows:
                    cells.append((key, masks.rows[place].buffer_for(value), _ALL))
                else:
                    cells.append((key, merged, merged_key(place, key)))
        store = make_nested_reader(cells_of)
        return NO_INFO_TEMPLATE if store is None else (masks.any_received, store, merged)

    def _merge_agent_info(self, agent: Any, info: Any, merged: dict[Any, Any]) -> None:
        place = self._place.get(agent)
        if place is None:
            merged[shared_info_key(agent)] = info
            return
        if info is None:  # some environments return None instead of an empty dict
            return
        if not isinstance(info, Mapping):
            raise BadValueError(f"agent {agent!r}: expected a dict as info, got {describe(info)}")
        row = self.masks.rows.get(place)
        for key, value in info.items():
            if row is not None and key == MASK:
                self.masks.put(agent, row, value)
            else:
                merged[merged_key(place, key)] = value


def _as_flag(agent: Any, name: str, value: Any) -> Any:
    try:
        return to_bool(name, value)
    except BadValueError as error:
        raise BadValueError(f"agent {agent!r}: {error}") from None
