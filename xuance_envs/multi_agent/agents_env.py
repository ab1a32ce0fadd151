"""An environment with many agents as one that steps records: what lives where it is stepped."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row, SpaceRows
from xuance_envs.engine.group.single_env import scalar_of
from xuance_envs.multi_agent.infos import InfoJoiner
from xuance_envs.multi_agent.lineups import Lineup, Lineups
from xuance_envs.multi_agent.masks import NOT_STORED, Masks
from xuance_envs.multi_agent.record import ActionRecord, ObservationRecord, Record
from xuance_envs.multi_agent.team import MASK, Groups, Team, team_of

__all__ = ["AgentsEnv"]

_ALL = slice(None)
_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)

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
        self._lay_out(False, [])

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
            "played": (self._masks.have_come, self._lineup.agents),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        played = state.pop("played")
        self.__dict__.update(state)
        self._lay_out(*played)

    def __env_state__(self) -> Any:
        """What its state is besides that of the environment."""
        return self._masks.have_come, list(self._lineup.agents), self._fields["alive"].tolist()

    def __set_env_state__(self, state: Any) -> None:
        """Puts it in."""
        self._masks.have_come, agents, alive = state
        self._lineup, self._entered = self._lineups.of(agents), None
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

    def _lay_out(self, gave_masks: bool, playing: Iterable[Any]) -> None:
        """Makes the record, and finds the places in it.

        Args:
            gave_masks: whether the environment has given any masks.
            playing: the agents that play.
        """
        team = self.described
        record = Record(team)
        self._flat = np.zeros(record.dtype.itemsize, np.uint8)
        fields = self._fields = record.fields(self._flat, record.dtype)
        at: dict[int, tuple[SpaceRows, int]] = {
            place: (rows, i)
            for group, rows in zip(team.groups, record.observation_rows(fields), strict=True)
            for i, place in enumerate(group.places)
        }
        self._observation_rows = [at[place] for place in range(len(team.agents))]
        self._rows: list[Row] = [
            rows.row(i, lambda value: value) for rows, i in self._observation_rows
        ]
        self._rewards = memoryview(fields["rewards"])  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        self._state_rows: SpaceRows | None = None
        if record.state is not None:
            parts = [fields[name][np.newaxis] for name in record.state_names()]
            self._state_rows = SpaceRows(record.state, parts, 1)
            self._state_row = self._state_rows.row(0, lambda value: value)
        self._masks = Masks(team, fields, gave_masks)
        self._infos = InfoJoiner(team, self._masks)
        self._lineups = Lineups(record, self._rows, self._masks)
        self._lineup = self._lineups.of(playing)
        self._entered = None
        self._marked = False

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
        lineup = self._lineup = self._lineups.of(agents)
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
        for agent, row in lineup.masked:
            self._masks.put(agent, row, observations[agent][MASK])
        info = self._joined(lineup, infos)
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
        if self._masks.have_come or type(infos) is not dict or any(infos.values()):
            info = self._infos.joined(lineup, infos)
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
        self._masks.begin()
        self._marked = False
        self._entered = lineup

    def _change(self, lineup: Lineup, living: Iterable[Any], observations: Any) -> None:
        """Takes note that agents have ended, or have come."""
        following = self._lineups.of(living)
        if following is lineup:
            return
        alive = self._fields["alive"]
        alive[...] = False
        alive[following.places] = True
        before = set(lineup.agents)
        for k, agent in enumerate(following.agents):
            if agent not in before and agent in observations:
                self._put_observation(following, k, observations[agent])
        for agent, row in following.masked:
            if agent not in before and agent in observations:
                self._masks.put(agent, row, observations[agent][MASK])
        self._lineup = following
        self._entered = None

    # -- what goes into the record ----------------------------------------------------

    def _put(
        self, lineup: Lineup, observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        """Stores what came of a step of these agents."""
        try:
            for agent, row in lineup.rows:
                row[_ALL] = observations[agent]
            lineup.put_rewards(self._rewards, 0, *lineup.get_rewards(rewards))
            get, none = lineup.get, lineup.none
            if get(terminated) != none or get(truncated) != none or self._marked:
                self._mark(lineup, terminated, truncated)
        except NOT_STORED:
            self._put_each(lineup, observations, rewards, terminated, truncated)
        for agent, mask_row in lineup.masked:
            self._masks.put(agent, mask_row, observations[agent][MASK])

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
        except NOT_STORED:
            rows, i = self._observation_rows[place]
            row = rows.row(i, lambda value: value, strict=False)
        try:
            row[:] = observation
        except BadValueError as error:
            raise BadValueError(f"agent {lineup.agents[k]!r}: its observation: {error}") from None
        self._rows[place] = row
        lineup.rows[k] = lineup.agents[k], row

    def _put_state(self) -> None:
        if self._state_rows is None:
            return
        state = self.env.state
        if callable(state):
            state = state()
        try:
            self._state_row[_ALL] = state
            return
        except NOT_STORED:
            self._state_row = self._state_rows.row(0, lambda value: value, strict=False)
        try:
            self._state_row[:] = state
        except BadValueError as error:
            raise BadValueError(f"its state: {error}") from None

    def _joined(self, lineup: Lineup, infos: Any) -> dict[Any, Any]:
        """The infos as one dict; masks are taken out."""
        return self._infos.joined(lineup, infos)

    def _check_masks(self, lineup: Lineup) -> None:
        if self._options[2] is True and not self._masks.have_come:
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
