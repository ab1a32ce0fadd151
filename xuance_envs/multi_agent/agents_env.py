"""An environment with many agents as one that steps records: what lives where it is stepped."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row, SpaceRows
from xuance_envs.engine.group.single_env import scalar_of
from xuance_envs.multi_agent.lineups import Lineup, Scalars, getter
from xuance_envs.multi_agent.masks import MaskRow
from xuance_envs.multi_agent.record import ActionRecord, ObservationRecord, Record
from xuance_envs.multi_agent.team import MASK, Groups, Team, team_of

__all__ = ["AgentsEnv"]

_ALL = slice(None)
_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)

# What tells that a quick way of storing does not take a value, or that an agent has none.
_NOT_STORED = (TypeError, ValueError, NotImplementedError, LookupError, DeprecationWarning)

_STRUCT_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_STRUCT_CODES |= {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}

_MAX_LINEUPS = 256
"""How many lineups are kept: agents that come and go make many."""

_MAX_KEYS = 1000
"""How many keys of an agent's info are known."""

_STEPPED = ("observations", "rewards", "terminations", "truncations")


class AgentsEnv:
    """An environment of PettingZoo's parallel form whose observations and actions are records.

    What it does not have is that of the environment itself.

    Args:
        env: the environment; one of PettingZoo's turn-based form is turned into a parallel one.
        groups: the agents of each group; None for groups by equal spaces.
        state: whether the state is carried: ``"auto"`` where there is one.
        action_mask: whether masks of actions are carried: ``"auto"`` where there are any.

    Raises:
        BadValueError: it is no such environment, or cannot be carried.
    """

    infos_by_agent = True
    _entered: Lineup | None

    def __init__(
        self, env: Any, groups: Groups | None, state: bool | str, action_mask: bool | str
    ) -> None:
        self.adapted = env
        self.env = self._checked(env)
        self._options = groups, state, action_mask
        self.described = self._team(groups, state, action_mask)
        self.observation_space = ObservationRecord(self.described)
        self.action_space = ActionRecord(self.described)
        self._has_given_masks = False
        self._alive: list[Any] = []
        self._lay_out()

    def __getattr__(self, name: str) -> Any:
        if name in ("env", "adapted"):  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "adapted": self.adapted,
            "env": self.env,
            "_options": self._options,
            "described": self.described,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "_has_given_masks": self._has_given_masks,
            "_alive": list(self._lineup.agents),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lay_out()

    def __env_state__(self) -> Any:
        """What its state is besides that of the environment."""
        return self._has_given_masks, list(self._lineup.agents), self._fields["alive"].tolist()

    def __set_env_state__(self, state: Any) -> None:
        """Puts it in."""
        self._has_given_masks, agents, alive = state
        self._lineup, self._entered = self._lineup_of(agents), None
        self._fields["alive"][...] = alive

    # -- what is known before a step --------------------------------------------------

    def _checked(self, env: Any) -> Any:
        if not callable(getattr(env, "observation_space", None)):
            raise BadValueError(
                "expected an environment with many agents: PettingZoo's, whose observation_space "
                "is a function of the agent, or XuanCe's, whose is a dict by agent; got "
                f"{describe(env)}"
            )
        if callable(getattr(env, "last", None)) and callable(getattr(env, "observe", None)):
            env = _as_parallel(env)
        if getattr(env, "possible_agents", None) is None:
            raise BadValueError(
                f"expected an environment that says which agents there can be, got {describe(env)} "
                "without possible_agents"
            )
        return env

    def _team(self, groups: Groups | None, state: bool | str, masks: bool | str) -> Team:
        agents = list(self.env.possible_agents)
        return self._described(
            agents,
            {agent: self.env.observation_space(agent) for agent in agents},
            {agent: self.env.action_space(agent) for agent in agents},
            groups,
            state,
            masks,
        )

    def _described(
        self,
        agents: list[Any],
        observation_spaces: Mapping[Any, Space[Any]],
        action_spaces: Mapping[Any, Space[Any]],
        groups: Groups | None,
        state: bool | str,
        masks: bool | str,
    ) -> Team:
        for name, value in (("state", state), ("action_mask", masks)):
            if value is not True and value is not False and value != "auto":
                raise BadValueError(f"{name}: expected True, False or 'auto', got {value!r}")
        space = getattr(self.env, "state_space", None) if state else None
        if state is True and space is None:
            raise BadValueError("state=True: expected an environment with a state_space, got none")
        team = team_of(
            agents, observation_spaces, action_spaces, space, groups, masks, self.infos_by_agent
        )
        if masks is True and all(group.mask is None for group in team.groups):
            raise BadValueError(
                "action_mask=True: expected actions that can be masked, which Discrete and "
                f"MultiDiscrete are, got { {str(g.action_space) for g in team.groups} }"
            )
        return team

    def _lay_out(self) -> None:
        """Makes the record, and finds the places in it."""
        team = self.described
        record = Record(team)
        self._flat = np.zeros(record.dtype.itemsize, np.uint8)
        self._actions = np.zeros(record.action_dtype.itemsize, np.uint8)
        fields = record.fields(self._flat, record.dtype)
        self._fields = fields
        self._place = {agent: i for i, agent in enumerate(team.agents)}
        groups = record.observation_rows(fields)
        self._observation_rows: list[tuple[SpaceRows, int]] = [(groups[0], 0)] * len(team.agents)
        self._mask_rows: dict[int, MaskRow] = {}
        self._masks_in_observations: set[int] = set()
        for group, rows in zip(team.groups, groups, strict=True):
            space = group.observation_space
            has_mask = isinstance(space, spaces.Dict) and MASK in space.spaces
            for i, place in enumerate(group.places):
                self._observation_rows[place] = rows, i
                if group.mask is not None:
                    self._mask_rows[place] = MaskRow(fields[f"{group.name}.mask"][i])
                    if has_mask:
                        self._masks_in_observations.add(place)
        self._rows: list[Row] = [
            rows.row(i, lambda value: value) for rows, i in self._observation_rows
        ]
        action_fields = record.fields(self._actions, record.action_dtype)
        self._read_actions = [rows.reader() for rows in record.action_rows(action_fields)]
        self._action_order = [place for group in team.groups for place in group.places]
        self._rewards = memoryview(fields["rewards"])  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        self._state_rows: SpaceRows | None = None
        if record.state is not None:
            parts = [fields[name][np.newaxis] for name in record.state_names()]
            self._state_rows = SpaceRows(record.state, parts, 1)
            self._state_row = self._state_rows.row(0, lambda value: value)
        # By agent, what the keys of its info become in the dict of all (its mask's is MASK), and
        # what quickly stores a mask of bools.
        self._info_names: dict[Any, tuple[dict[Any, Any], Any]] = {
            agent: ({}, self._mask_rows[i].view if i in self._mask_rows else ())
            for agent, i in self._place.items()
        }
        self._lineups: dict[tuple[Any, ...], Lineup] = {}
        self._lineup = self._lineup_of(self._alive)
        self._entered = None
        self._marked = False

    def _lineup_of(self, agents: Iterable[Any]) -> Lineup:
        """The lineup of some agents.

        Raises:
            BadValueError: the team has no such agent.
        """
        key = tuple(agents)
        lineup = self._lineups.get(key)
        if lineup is not None:
            return lineup
        for agent in key:
            if agent not in self._place:
                raise BadValueError(
                    f"agent {agent!r} is not in possible_agents: expected one of "
                    f"{list(self.described.agents)}"
                )
        places = [self._place[agent] for agent in key]
        if len(self._lineups) >= _MAX_LINEUPS:
            self._lineups.clear()
        masked = [
            (k, self._mask_rows[place])
            for k, place in enumerate(places)
            if place in self._masks_in_observations
        ]
        lineup = self._lineups[key] = Lineup(
            list(key), places, [self._rows[place] for place in places], self._taker(places), masked
        )
        return lineup

    def _taker(self, places: list[int]) -> Callable[[NDArray[np.uint8]], Iterable[Any]]:
        """What gives the actions of the agents at some places, in that order, from a record."""
        own, readers, order = self._actions, self._read_actions, self._action_order
        pick = None if places == order else getter([order.index(place) for place in places])
        if len(readers) == 1 and isinstance(self.described.groups[0].action_space, spaces.Discrete):
            dtype = np.dtype(self.described.groups[0].action_space.dtype)
            numbers_of = Struct(f"{len(order)}{_STRUCT_CODES[dtype.str[1:]]}").unpack_from
            scalar_of = Scalars(dtype.type).__getitem__

            def numbers(record: NDArray[np.uint8]) -> Iterable[Any]:
                values = numbers_of(record)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
                return map(scalar_of, values if pick is None else pick(values))

            return numbers

        def read(record: NDArray[np.uint8]) -> Iterable[Any]:
            own[:] = record
            values = [action for read in readers for action in read()]
            return values if pick is None else pick(values)

        return read

    def xuance_infos(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What XuanCe's environments say of themselves, and of their groups of agents."""
        team = self.described
        observation_space = dict(zip(team.agents, team.observation_spaces, strict=True))
        action_space = dict(zip(team.agents, team.action_spaces, strict=True))
        groups = [list(group.agents) for group in team.groups]
        env_info = {
            "state_space": team.state_space,
            "observation_space": observation_space,
            "action_space": action_space,
            "agents": list(team.agents),
            "num_agents": len(team.agents),
            "max_episode_steps": getattr(self.env, "max_episode_steps", None),
        }
        groups_info = {
            "num_groups": len(groups),
            "agent_groups": groups,
            "observation_space_groups": [{a: observation_space[a] for a in g} for g in groups],
            "action_space_groups": [{a: action_space[a] for a in g} for g in groups],
            "num_agents_groups": [len(group) for group in groups],
        }
        return env_info, groups_info

    # -- stepping ---------------------------------------------------------------------

    def reset(self, **given: Any) -> tuple[NDArray[np.uint8], dict[Any, Any]]:
        """Resets the environment.

        Args:
            **given: ``seed`` and ``options``, where there are any.
        """
        result = self.env.reset(**given)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError(
                f"reset: expected a tuple (observations, infos), got {describe(result)}"
            )
        observations, infos = result
        agents = self._living()
        if not agents:
            raise BadValueError("reset: expected at least one agent in agents, got none")
        lineup = self._lineup = self._lineup_of(agents)
        self._enter(lineup)
        self._fields["acted"][...] = False
        self._entered = None
        for k, agent in enumerate(lineup.agents):
            if agent not in observations:
                raise BadValueError(
                    f"agent {agent!r}: expected it in the observations that reset returned, for "
                    f"it is in agents, got {list(observations)}"
                )
            self._put_observation(lineup, k, observations[agent])
        for k, row in lineup.masked:
            self._put_mask(lineup.agents[k], row, observations[lineup.agents[k]][MASK])
        info = self._taken(lineup, infos)
        self._put_state()
        self._check_masks(lineup)
        return self._flat, info

    def step(self, action: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], float, bool, bool, Any]:
        """Steps the environment with the actions of the agents that live.

        Args:
            action: a record of actions.

        Returns:
            The record, no reward, whether the episode is over, False, and the infos as one dict.
        """
        lineup = self._lineup
        if lineup is not self._entered:
            self._enter(lineup)
        given = dict(zip(lineup.agents, lineup.actions(action)))  # noqa: B905  # costs, every step
        result = self.env.step(given)
        try:
            observations, rewards, terminated, truncated, infos = result
        except (TypeError, ValueError):
            raise BadValueError(
                "step: expected a tuple (observations, rewards, terminations, truncations, infos), "
                f"got {describe(result)}"
            ) from None
        self._put(lineup, observations, rewards, terminated, truncated)
        if self._has_given_masks or type(infos) is not dict or any(infos.values()):
            info = self._taken(lineup, infos)
        else:
            info = {}
        living = self._living()
        if living != lineup.agents:
            self._change(lineup, living, observations)
        if self._state_rows is not None:
            self._put_state()
        return self._flat, 0.0, not living, False, info

    def _living(self) -> Any:
        return self.env.agents

    def _enter(self, lineup: Lineup) -> None:
        """Readies the record for a step of these agents: all else in it is that of nobody."""
        self._flat[:] = 0
        fields = self._fields
        fields["acted"][lineup.places] = True
        fields["alive"][lineup.places] = True
        fields["gives_masks"][...] = self._has_given_masks
        for row in self._mask_rows.values():
            row.allow_all()
        self._marked = False
        self._entered = lineup

    def _change(self, lineup: Lineup, living: Iterable[Any], observations: Any) -> None:
        """Takes note that agents have ended, or have come."""
        following = self._lineup_of(living)
        if following is lineup:
            return
        alive = self._fields["alive"]
        alive[...] = False
        alive[following.places] = True
        before = set(lineup.agents)
        for k, agent in enumerate(following.agents):
            if agent not in before and agent in observations:
                self._put_observation(following, k, observations[agent])
                for place, row in following.masked:
                    if place == k:
                        self._put_mask(agent, row, observations[agent][MASK])
        self._lineup = following
        self._entered = None

    # -- what goes into the record ----------------------------------------------------

    def _put(
        self, lineup: Lineup, observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        """Stores what came of a step of these agents."""
        get = lineup.get
        reward_of = self._rewards
        try:
            seen = get(observations)
            for row, place, observation, reward in zip(  # noqa: B905  # as many, and it costs
                lineup.rows, lineup.places, seen, get(rewards)
            ):
                row[_ALL] = observation
                reward_of[place] = reward
            if get(terminated) != lineup.none or get(truncated) != lineup.none or self._marked:
                self._mark(lineup, terminated, truncated)
        except _NOT_STORED:
            self._put_each(lineup, observations, rewards, terminated, truncated)
            seen = get(observations)
        for k, mask_row in lineup.masked:
            self._put_mask(lineup.agents[k], mask_row, seen[k][MASK])

    def _mark(self, lineup: Lineup, terminated: Any, truncated: Any) -> None:
        self._marked = False
        for name, flags in (("terminated", terminated), ("truncated", truncated)):
            field = self._fields[name]
            for agent, place in zip(lineup.agents, lineup.places, strict=True):
                flag = flags[agent]
                if type(flag) is not bool:
                    flag = self._scalar(agent, name, flag, _BOOL)
                field[place] = flag
                self._marked = self._marked or flag

    def _put_each(self, lineup: Lineup, *stepped: Any) -> None:
        """Stores what the quick way did not take, agent by agent.

        Raises:
            BadValueError: something is missing, or does not fit.
        """
        for name, values in zip(_STEPPED, stepped, strict=True):
            if not isinstance(values, Mapping):
                raise BadValueError(f"step: expected {name} by agent, got {describe(values)}")
            for agent in lineup.agents:
                if agent not in values:
                    raise BadValueError(
                        f"agent {agent!r}: expected it in the {name} that step returned, for it "
                        f"was alive before, got {list(values)}"
                    )
        observations, rewards, terminated, truncated = stepped
        for k, agent in enumerate(lineup.agents):
            self._put_observation(lineup, k, observations[agent])
            self._rewards[lineup.places[k]] = self._scalar(agent, "reward", rewards[agent], _FLOAT)
        self._mark(lineup, terminated, truncated)

    def _put_observation(self, lineup: Lineup, k: int, observation: Any) -> None:
        """Stores the observation of an agent, in the quick way if that takes it."""
        place = lineup.places[k]
        try:
            self._rows[place][:] = observation
            return
        except _NOT_STORED:
            rows, i = self._observation_rows[place]
            row = rows.row(i, lambda value: value, strict=False)
        try:
            row[:] = observation
        except BadValueError as error:
            raise BadValueError(f"agent {lineup.agents[k]!r}: its observation: {error}") from None
        self._rows[place] = lineup.rows[k] = row
        self._lineups = {tuple(lineup.agents): lineup}

    def _put_mask(self, agent: Any, row: MaskRow, mask: Any) -> None:
        try:
            row.put(mask)
        except BadValueError as error:
            raise BadValueError(f"agent {agent!r}: its {MASK}: {error}") from None
        if not self._has_given_masks:
            self._fields["gives_masks"][...] = self._has_given_masks = True

    def _put_state(self) -> None:
        if self._state_rows is None:
            return
        state = self.env.state
        if callable(state):
            state = state()
        try:
            self._state_row[_ALL] = state
            return
        except _NOT_STORED:
            self._state_row = self._state_rows.row(0, lambda value: value, strict=False)
        try:
            self._state_row[:] = state
        except BadValueError as error:
            raise BadValueError(f"its state: {error}") from None

    def _taken(self, lineup: Lineup, infos: Any) -> dict[Any, Any]:
        """The infos of all agents as one dict, whose keys tell the agents; masks are taken out.

        Raises:
            BadValueError: an info is no dict.
        """
        taken: dict[Any, Any] = {}
        if type(infos) is not dict and not isinstance(infos, Mapping):
            raise BadValueError(f"expected infos by agent, got {describe(infos)}")
        masks, anew = 0, False
        for agent, info in infos.items():
            try:
                names, mask_view = self._info_names[agent]
                for key, value in info.items():
                    name = names[key]
                    if name is not MASK:
                        taken[name] = value
                    else:
                        mask_view[_ALL] = value
                        masks += 1
            except (*_NOT_STORED, AttributeError):
                self._take_anew(agent, info, taken)
                anew = True
        if self._has_given_masks and (anew or masks < len(lineup.agents)):
            self._allow_all(lineup, infos)
        return taken

    def _take_anew(self, agent: Any, info: Any, taken: dict[Any, Any]) -> None:
        """Takes an info with keys that are new, or a mask of another kind.

        Raises:
            BadValueError: it is no dict, or its mask is none.
        """
        place = self._place.get(agent)
        if place is None:
            taken[f":{agent}" if isinstance(agent, str) else (-1, agent)] = info
            return
        if not isinstance(info, Mapping):
            raise BadValueError(
                f"agent {agent!r}: expected an info that is a dict, got {describe(info)}"
            )
        names, _ = self._info_names[agent]
        if len(names) > _MAX_KEYS:  # keys that are ever new
            names.clear()
        row = self._mask_rows.get(place)
        for key, value in info.items():
            if key == MASK and row is not None:
                names[key] = MASK
                self._put_mask(agent, row, value)
            else:
                names[key] = f"{place}:{key}" if isinstance(key, str) else (place, key)
                taken[names[key]] = value

    def _allow_all(self, lineup: Lineup, infos: Mapping[Any, Any]) -> None:
        """Allows all actions of those whose masks are in infos, and not in these."""
        for agent, place in zip(lineup.agents, lineup.places, strict=True):
            row = self._mask_rows.get(place)
            if row is None or place in self._masks_in_observations:
                continue
            if MASK not in (infos.get(agent) or ()):
                row.allow_all()

    def _check_masks(self, lineup: Lineup) -> None:
        if self._options[2] is True and not self._has_given_masks:
            raise BadValueError(
                "action_mask=True: expected a mask of actions in an observation or an info of "
                f"reset, under {MASK!r}, got none of {lineup.agents}"
            )

    def _scalar(self, agent: Any, name: str, value: Any, dtype: np.dtype[Any]) -> Any:
        try:
            return scalar_of(name, value, dtype)
        except BadValueError as error:
            raise BadValueError(f"agent {agent!r}: {error}") from None


def _as_parallel(env: Any) -> Any:
    """An environment of PettingZoo's turn-based form as a parallel one.

    Raises:
        BadValueError: its agents cannot act at the same time.
    """
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
        raise BadValueError(
            f"{describe(env)} is turn-based (AEC), and its metadata do not say is_parallelizable: "
            "its agents cannot act at the same time, as vectorized ones do"
        )
    conversions = importlib.import_module("pettingzoo.utils.conversions")
    return conversions.aec_to_parallel(env)
