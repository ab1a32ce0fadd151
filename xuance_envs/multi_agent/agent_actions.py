"""Validation of the agents' actions and their transfer into records."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import ALL_ENVS, Index, SpaceRows
from xuance_envs.errors import counted
from xuance_envs.multi_agent.record_layout import RecordLayout
from xuance_envs.vector_envs.action_writer import all_in_space


class AgentActions:
    def __init__(self, record: RecordLayout, alive: NDArray[np.bool_], check: bool) -> None:
        self._record = record
        self._alive = alive  # the caller updates it: agents that act next, ``(num_envs, A)``
        self._check = check
        self._names = set(record.team.agents)
        num_envs = len(alive)
        self.records = np.zeros((num_envs, record.action_dtype.itemsize), np.uint8)
        self._every = np.arange(num_envs)
        batch = np.ndarray(num_envs, record.action_dtype, self.records)
        self._rows = [
            SpaceRows(fields.actions.layout, fields.actions.parts(batch), num_envs)
            for fields in record.groups
        ]
        self._flat = self._rows[0].flat if record.team.is_one else None
        space = record.groups[0].group.action_space
        is_batch = record.team.is_one and isinstance(space, spaces.Tuple)
        self._list_types = list if is_batch else (list, tuple)  # a tuple may be a batch of a space
        self._agent_rows = list(map(record.action_rows, self.records))

    def put(self, actions: Any, envs: NDArray[np.intp] | None = None) -> None:
        """Store actions of ``envs`` (None: all). If this raises, their records are invalid."""
        flat = self._flat
        if (
            flat is not None
            and type(actions) is np.ndarray
            and actions.dtype == flat.dtype
            and actions.shape == (flat.shape if envs is None else (len(envs), *flat.shape[1:]))
            and not self._check
        ):
            flat[... if envs is None else envs] = actions
            return
        at: Index = ALL_ENVS if envs is None else envs
        envs = self._every if envs is None else envs
        try:
            is_list = isinstance(actions, self._list_types)
            if is_list and any(isinstance(a, Mapping) for a in actions):
                self._put_dicts(actions, envs, at)
            else:
                self._put_arrays(actions, envs, at)
        except BadValueError as error:
            given = counted(len(envs), "environment")
            raise ValueError(f"actions for {given}: {error}") from None
        if self._check:
            self._check_actions(envs)

    def _put_arrays(self, actions: Any, envs: NDArray[np.intp], at: Index) -> None:
        groups = self._record.groups
        if self._record.team.is_one:
            if self._flat is not None and isinstance(actions, Mapping):
                shape = (len(envs), *self._flat.shape[1:])
                raise BadValueError(
                    f"expected an array of shape {shape}, or a list with a dict {{agent: action}} "
                    f"for each environment, got a dict with the keys {list(actions)}"
                )
            self._rows[0].put(actions, at, len(envs))
            return
        names = [fields.group.name for fields in groups]
        if not isinstance(actions, Mapping) or actions.keys() != set(names):
            got = f"the keys {list(actions)}" if isinstance(actions, Mapping) else describe(actions)
            raise BadValueError(
                f"expected a dict with the groups {names}, or a list with a dict {{agent: action}} "
                f"for each environment, got {got}"
            )
        for name, rows in zip(names, self._rows, strict=True):
            try:
                rows.put(actions[name], at, len(envs))
            except BadValueError as error:
                raise BadValueError(f"group {name!r}: {error}") from None

    def _put_dicts(self, actions: Sequence[Any], envs: NDArray[np.intp], at: Index) -> None:
        agents = self._record.team.agents
        if len(actions) != len(envs):
            raise BadValueError(
                f"expected a list of {counted(len(envs), 'dict')}, one per environment, got "
                f"{len(actions)}"
            )
        for given in actions:
            if type(given) is not dict or len(given) != len(agents):
                self._check_dicts(actions, envs)
                break
        self.records[envs] = 0  # for agents without an action
        for k, fields in enumerate(self._record.groups):
            names, flat = fields.group.agents, self._rows[k].flat
            if flat is None:  # an action needs several arrays
                self._check_dicts(actions, envs)
                self._put_each(k, actions, envs)
                continue
            try:
                batch = [[given[name] for name in names] for given in actions]
            except LookupError:
                self._check_dicts(actions, envs)
                idle = np.zeros(flat.shape[2:], flat.dtype)
                batch = [[given.get(name, idle) for name in names] for given in actions]
            try:
                self._rows[k].put(np.asarray(batch), at, len(envs))
            except (ValueError, TypeError):
                self._put_each(k, actions, envs)

    def _check_dicts(self, actions: Sequence[Any], envs: NDArray[np.intp]) -> None:
        """Raise if an active agent has no action, or if an agent is unknown."""
        agents = self._record.team.agents
        for given, env in zip(actions, envs.tolist(), strict=True):
            if not isinstance(given, Mapping):
                raise BadValueError(f"environment {env}: expected a dict, got {describe(given)}")
            if unknown_agents := [agent for agent in given if agent not in self._names]:
                raise BadValueError(
                    f"environment {env}: expected actions for agents in {list(agents)}, got "
                    f"actions for unknown agents {unknown_agents}"
                )
            for agent, is_active in zip(agents, self._alive[env].tolist(), strict=True):
                if is_active and agent not in given:
                    raise BadValueError(
                        f"environment {env}: expected an action for active agent {agent!r}, got "
                        f"actions for {list(given)}"
                    )

    def _put_each(self, k: int, actions: Sequence[Any], envs: NDArray[np.intp]) -> None:
        """Store a group's actions one by one; skip inactive agents of PettingZoo environments."""
        group, alive = self._record.groups[k].group, self._alive
        for given, env in zip(actions, envs.tolist(), strict=True):
            rows = self._agent_rows[env][k]
            for i, (agent, place) in enumerate(zip(group.agents, group.places, strict=True)):
                if agent in given and (alive[env, place] or not self._record.team.infos_by_agent):
                    try:
                        rows.row(i, strict=False)[:] = given[agent]
                    except BadValueError as error:
                        raise BadValueError(
                            f"environment {env}, agent {agent!r}: {error}"
                        ) from None

    def _check_actions(self, envs: NDArray[np.intp]) -> None:
        """Raise on invalid actions of active agents; replace those of inactive agents."""
        for k, fields in enumerate(self._record.groups):
            group, flat = fields.group, self._rows[k].flat
            space = group.action_space
            if flat is not None and all_in_space(space, flat[envs]):
                continue
            for env in envs.tolist():
                rows = self._agent_rows[env][k]
                for i, value in enumerate(rows.reader()()):
                    if space.contains(value):
                        continue
                    if self._alive[env, group.places[i]]:
                        raise ValueError(
                            f"the action for environment {env}, agent {group.agents[i]!r}: "
                            f"expected one in {space}, got {value!r}"
                        )
                    own = copy.deepcopy(space)
                    own.seed(0)  # for the same action on every call
                    rows.row(i, strict=False)[:] = own.sample()
