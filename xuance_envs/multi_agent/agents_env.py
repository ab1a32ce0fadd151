"""An environment with many agents as one that steps records: what lives where it is stepped."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.multi_agent.env_record import EnvRecord
from xuance_envs.multi_agent.record_layout import ActionRecord, ObservationRecord
from xuance_envs.multi_agent.team import MASK, Groups, Team, build_team

__all__ = ["AgentsEnv"]


class AgentsEnv:
    """An environment of PettingZoo's parallel form whose observations and actions are records.

    What it does not have is looked for in the environment, as in any that is wrapped: passing it on
    from here would take time with whatever is had here, in every step.
    """

    infos_by_agent = True

    def __init__(
        self,
        env: Any,
        groups: Groups | None,
        state: bool | str,
        action_mask: bool | str,
        first_seed: int | None = None,
    ) -> None:
        self.source_env = env
        self.env = self._checked(env)
        self._options = groups, state, action_mask
        self._first_seed = first_seed
        self.team = self._team(groups, state, action_mask)
        self.observation_space = ObservationRecord(self.team)
        self.action_space = ActionRecord(self.team)
        self._record = EnvRecord(self.team, False, [])

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_record": None}
        return {
            **state,
            "record_state": (self._record.masks.any_received, self._record.agent_set.agents),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        record_state = state.pop("record_state")
        self.__dict__.update(state)
        self._record = EnvRecord(self.team, *record_state)

    def __env_state__(self) -> Any:
        """What its state is besides that of the environment."""
        record = self._record
        agents, alive = list(record.agent_set.agents), record.fields["alive"].tolist()
        return record.masks.any_received, agents, alive, self._first_seed

    def __set_env_state__(self, state: Any) -> None:
        """Puts it in."""
        record = self._record
        record.masks.any_received, agents, alive, self._first_seed = state
        record.set_agents(agents)
        record.fields["alive"][...] = alive

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
        return self._build_team(
            agents,
            {agent: self.env.observation_space(agent) for agent in agents},
            {agent: self.env.action_space(agent) for agent in agents},
            groups,
            state,
            masks,
        )

    def _build_team(
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
        team = build_team(
            agents, observation_spaces, action_spaces, space, groups, masks, self.infos_by_agent
        )
        if masks is True and all(group.mask is None for group in team.groups):
            raise BadValueError(
                "action_mask=True: expected actions that can be masked, which Discrete and "
                f"MultiDiscrete are, got { {str(g.action_space) for g in team.groups} }"
            )
        return team

    def xuance_infos(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What XuanCe's environments say of themselves, and of their groups of agents."""
        team = self.team
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
        """Resets the environment."""
        if self._first_seed is not None:
            given.setdefault("seed", self._first_seed)
            self._first_seed = None
        result = self.env.reset(**given)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError(
                f"reset: expected a tuple (observations, infos), got {describe(result)}"
            )
        observations, infos = result
        agents = self._live_agents()
        if not agents:
            raise BadValueError("reset: expected at least one agent in agents, got none")
        record = self._record
        record.start(agents, observations)
        info = self._merge_infos(infos)
        if record.has_state:
            record.put_state(self._state())
        if self._options[2] is True and not record.masks.any_received:
            raise BadValueError(
                "action_mask=True: expected a mask of actions in an observation or an info of "
                f"reset, under {MASK!r}, got none of {record.agent_set.agents}"
            )
        return record.flat, info

    def step(self, action: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], float, bool, bool, Any]:
        """Steps the environment with the actions of the agents that live."""
        record, env = self._record, self.env
        agent_set = record.agent_set
        if agent_set is not record.prepared_for:
            record.prepare(agent_set)
        result = env.step(agent_set.actions(action))
        try:
            observations, rewards, terminated, truncated, infos = result
        except (TypeError, ValueError):
            raise BadValueError(
                "step: expected a tuple (observations, rewards, terminations, truncations, infos), "
                f"got {describe(result)}"
            ) from None
        record.put(observations, rewards, terminated, truncated)
        info = record.merge_infos(infos)
        living = env.agents
        if record.has_flags and living:
            record.check_ends(living)
        if living != agent_set.agents:
            record.change_agents(living, observations)
        if record.has_state:
            record.put_state(self._state())
        return record.flat, 0.0, not living, False, info

    def _live_agents(self) -> Any:
        return self.env.agents

    def _state(self) -> Any:
        state = self.env.state
        return state() if callable(state) else state

    def _merge_infos(self, infos: Any) -> dict[Any, Any]:
        """The infos as one dict; masks are taken out."""
        return self._record.merge_infos(infos)


def _as_parallel(env: Any) -> Any:
    """An environment of PettingZoo's turn-based form as a parallel one."""
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
        raise BadValueError(
            f"{describe(env)} is turn-based (AEC), and its metadata do not say is_parallelizable: "
            "its agents cannot act at the same time, as vectorized ones do"
        )
    conversions = importlib.import_module("pettingzoo.utils.conversions")
    return conversions.aec_to_parallel(env)
