"""The record of one environment with many agents, and how what they have gets into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row, SpaceRows
from xuance_envs.engine.group.single_env import scalar_of
from xuance_envs.multi_agent.infos import InfoJoiner
from xuance_envs.multi_agent.lineups import Lineup, Lineups
from xuance_envs.multi_agent.masks import NOT_STORED, Masks
from xuance_envs.multi_agent.record import Record
from xuance_envs.multi_agent.team import MASK, Team

__all__ = ["EnvRecord"]

_ALL = slice(None)
_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)

_STEPPED = ("observations", "rewards", "terminations", "truncations")


class EnvRecord:
    """The record of one environment, and how what its agents have gets into it.

    Args:
        team: the agents.
        gave_masks: whether the environment has given any masks.
        playing: the agents that play.

    Attributes:
        flat: ``(nbytes,)`` uint8: the record, the same array all the time.
        fields (dict): views of its fields.
        masks (Masks): where masks go.
        has_state (bool): whether a state is carried.
        lineup (Lineup): the agents that play.
        entered (Lineup | None): those that the record is ready for.
        marked (bool): whether the last step ended some agents' parts.
    """

    def __init__(self, team: Team, gave_masks: bool, playing: Iterable[Any]) -> None:
        record = Record(team)
        self.flat = np.zeros(record.dtype.itemsize, np.uint8)
        fields = self.fields = record.fields(self.flat, record.dtype)
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
        self._flags = {name: memoryview(fields[name]) for name in ("terminated", "truncated")}  # type: ignore[arg-type]  # as above
        self.has_state = record.state is not None
        if record.state is not None:
            parts = [fields[name][np.newaxis] for name in record.state_names]
            self._state_rows = SpaceRows(record.state, parts, 1)
            self._state_row = self._state_rows.row(0, lambda value: value)
        self.masks = Masks(team, fields, gave_masks)
        self._infos = InfoJoiner(team, self.masks)
        self._lineups = Lineups(record, self._rows, self._rewards, self.masks)
        self.marked = False
        self.play(playing)

    # -- who plays --------------------------------------------------------------------

    def play(self, agents: Iterable[Any]) -> None:
        """Takes note of who plays; what they have is yet to come."""
        self.lineup = self._lineups.of(agents)
        self.entered: Lineup | None = None

    def enter(self, lineup: Lineup) -> None:
        """Readies the record for what these agents do: all else in it is that of nobody."""
        self.flat[:] = 0
        fields = self.fields
        fields["acted"][...] = fields["alive"][...] = lineup.playing
        self.masks.begin()
        self.marked = False
        self.entered = lineup

    def start(self, agents: Iterable[Any], observations: Any) -> None:
        """Stores what an episode starts from.

        Args:
            agents: those that play.
            observations: by agent.

        Raises:
            BadValueError: one has no observation, or one that does not fit.
        """
        self.play(agents)
        lineup = self.lineup
        self.enter(lineup)
        self.fields["acted"][...] = False
        self.entered = None
        for k, agent in enumerate(lineup.agents):
            if agent not in observations:
                raise BadValueError(
                    f"agent {agent!r}: expected it in the observations that reset returned, for "
                    f"it is in agents, got {list(observations)}"
                )
            self._put_observation(lineup, k, observations[agent])
        for agent, row in lineup.masked:
            self.masks.put(agent, row, observations[agent][MASK])

    def change(self, living: Iterable[Any], observations: Any) -> None:
        """Takes note that agents have ended, or have come.

        Args:
            living: those that play on.
            observations: of the step, in which the newcomers may have theirs.
        """
        lineup = self.lineup
        following = self._lineups.of(living)
        if following is lineup:
            return
        self.fields["alive"][...] = following.playing
        if not following.none.keys() <= lineup.none.keys():
            self._welcome(following, lineup, observations)
        self.lineup = following
        self.entered = None

    def _welcome(self, lineup: Lineup, before: Lineup, observations: Any) -> None:
        """Stores the observations that agents have who were not there before."""
        for k, agent in enumerate(lineup.agents):
            if agent not in before.none and agent in observations:
                self._put_observation(lineup, k, observations[agent])
        for agent, row in lineup.masked:
            if agent not in before.none and agent in observations:
                self.masks.put(agent, row, observations[agent][MASK])

    def check_ends(self, living: Iterable[Any]) -> None:
        """Raises where all that are to play on were ended by the last step.

        Raises:
            BadValueError: so it is.
        """
        terminated, truncated = self._flags["terminated"], self._flags["truncated"]
        if all(terminated[i] or truncated[i] for i in self._lineups.of(living).places):
            raise BadValueError(
                "step: expected agents to be empty where all are terminated or truncated, for that "
                f"is an episode's end, got {list(living)}"
            )

    # -- what they have ---------------------------------------------------------------

    def put(self, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Stores what came of a step of the agents that play.

        Raises:
            BadValueError: something is missing, or does not fit.
        """
        lineup = self.lineup
        try:
            lineup.put(observations, rewards)
            none = lineup.none
            if terminated != none or truncated != none or self.marked:
                self._mark(lineup, terminated, truncated)
        except NOT_STORED:
            self._put_each(lineup, observations, rewards, terminated, truncated)
        for agent, mask_row in lineup.masked:
            self.masks.put(agent, mask_row, observations[agent][MASK])

    def joined(self, infos: Any) -> dict[Any, Any]:
        """The infos of the agents that play as one dict, until the next step; masks are taken out.

        Raises:
            BadValueError: an info is no dict, or a mask is none.
        """
        if self.masks.have_come or type(infos) is not dict or any(infos.values()):
            return self._infos.joined(self.lineup, infos)
        return {}

    def _mark(self, lineup: Lineup, terminated: Any, truncated: Any) -> None:
        marked, self.marked = False, True  # what an error leaves is overwritten
        for name, flags in (("terminated", terminated), ("truncated", truncated)):
            stored = self._flags[name]
            for agent, place in zip(lineup.agents, lineup.places, strict=True):
                flag = flags[agent]
                if type(flag) is not bool:
                    flag = _scalar(agent, name, flag, _BOOL)
                stored[place] = flag
                marked = marked or flag
        self.marked = marked

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
            self._rewards[lineup.places[k]] = _scalar(agent, "reward", rewards[agent], _FLOAT)
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
        lineup.take_row(lineup.agents[k], row)

    def put_state(self, state: Any) -> None:
        """Stores the environment's state.

        Raises:
            BadValueError: it does not fit.
        """
        try:
            self._state_row[_ALL] = state
            return
        except NOT_STORED:
            self._state_row = self._state_rows.row(0, lambda value: value, strict=False)
        try:
            self._state_row[:] = state
        except BadValueError as error:
            raise BadValueError(f"its state: {error}") from None


def _scalar(agent: Any, name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    try:
        return scalar_of(name, value, dtype)
    except BadValueError as error:
        raise BadValueError(f"agent {agent!r}: {error}") from None
