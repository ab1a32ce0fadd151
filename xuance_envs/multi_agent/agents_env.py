"""Adapter of PettingZoo environments that packs the agents' data into records."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.extras import naming_extra
from xuance_envs.multi_agent.env_record import EnvRecord
from xuance_envs.multi_agent.raw_env import RawMultiAgentEnv
from xuance_envs.multi_agent.record_layout import ActionRecord, ObservationRecord
from xuance_envs.multi_agent.team import MASK, Groups, Team, agent_list, build_team
from xuance_envs.vector_envs.options import AutoBool


class AgentsEnv:
    infos_by_agent = True
    reward_space = None  # the agents' rewards are part of the record

    def __init__(
        self,
        env: Any,
        groups: Groups | None,
        state: AutoBool,
        action_masks: AutoBool,
        first_seed: int | None,
    ) -> None:
        self.source_env = env
        self.env = self._checked(env)  # vec envs find attributes here, without a slow __getattr__
        self._options = groups, state, action_masks
        self._first_seed = first_seed
        self._team = self._build_team(groups, state, action_masks)
        self.observation_space = ObservationRecord(self._team)
        self.action_space = ActionRecord(self._team)
        self._record = EnvRecord(self._team)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_record": self.__env_state__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._record = EnvRecord(self._team)
        self.__set_env_state__(state["_record"])

    def __env_state__(self) -> Any:
        """Return the adapter's own state, without the environment's state."""
        record = self._record
        agents, alive = list(record.agent_set.agents), record.fields["alive"].tolist()
        episode = [array.copy() for array in record.episode_arrays]
        return record.masks.any_received, agents, alive, self._first_seed, episode

    def __set_env_state__(self, state: Any) -> None:
        record = self._record
        record.masks.any_received, agents, alive, self._first_seed, *episode = state
        record.set_agents(agents)
        record.fields["alive"][...] = alive
        for arrays in episode:  # not in states saved by version 0.2.0
            for array, value in zip(record.episode_arrays, arrays, strict=True):
                array[...] = value

    # -- construction -----------------------------------------------------------------

    def _checked(self, env: Any) -> Any:
        if not callable(getattr(env, "observation_space", None)):
            raise BadValueError(
                "expected a multi-agent environment, with an observation_space method (PettingZoo) "
                f"or an observation_space dict by agent (XuanCe), got {describe(env)}"
            )
        if callable(getattr(env, "last", None)) and callable(getattr(env, "observe", None)):
            env = _as_parallel(env)
        if getattr(env, "possible_agents", None) is None:
            raise BadValueError(
                f"expected an environment with possible_agents, got {describe(env)} without "
                "possible_agents"
            )
        return env

    def _build_team(self, groups: Groups | None, state: AutoBool, masks: AutoBool) -> Team:
        env, by_agent = self.env, self.infos_by_agent
        agents = agent_list(env.possible_agents if by_agent else env.agents)
        observed, acting = env.observation_space, env.action_space
        if by_agent:
            observed, acting = ({a: space_of(a) for a in agents} for space_of in (observed, acting))
        for name, value in (("state", state), ("action_masks", masks)):
            if value is not True and value is not False and value != "auto":
                raise BadValueError(f"{name}: expected True, False or 'auto', got {value!r}")
        space = getattr(env, "state_space", None) if state else None
        if state is True and space is None:
            raise BadValueError(
                "state=True: expected an environment with a state_space, got one without"
            )
        rewards = _common_reward_space(env, agents)
        team = build_team(agents, observed, acting, space, groups, masks, by_agent, rewards)
        if masks is True and all(group.mask is None for group in team.groups):
            raise BadValueError(
                "action_masks=True: expected Discrete or MultiDiscrete action spaces, got "
                f"{ {str(g.action_space) for g in team.groups} }"
            )
        return team

    def xuance_infos(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the environment's and its groups' properties in XuanCe's format."""
        team = self._team
        info: Any = SimpleNamespace(
            agents=list(team.agents),
            num_agents=len(team.agents),
            observation_space=dict(team.observation_spaces),
            action_space=dict(team.action_spaces),
            state_space=team.state_space,
            max_episode_steps=getattr(self.env, "max_episode_steps", None),
            agent_groups=[list(group.agents) for group in team.groups],
        )
        return RawMultiAgentEnv.get_env_info(info), RawMultiAgentEnv.get_groups_info(info)

    # -- stepping ---------------------------------------------------------------------

    def reset(self, **given: Any) -> tuple[NDArray[np.uint8], dict[Any, Any]]:
        """Reset the environment and return its record and info."""
        return self._store_reset(self.env.reset(**self._reset_arguments(given)))

    def _reset_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._first_seed is not None:
            given.setdefault("seed", self._first_seed)
            self._first_seed = None
        return given

    def _store_reset(self, result: Any) -> tuple[NDArray[np.uint8], dict[Any, Any]]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError(
                f"reset: expected a tuple (observations, infos), got {describe(result)}"
            )
        observations, infos = result
        agents = agent_list(self.env.agents) if self.infos_by_agent else self._team.agents
        if not agents:
            raise BadValueError(
                "reset: expected at least one agent in the attribute agents after reset, got an "
                "empty list"
            )
        record = self._record
        record.start(agents, observations)
        info = self._merge_infos(infos)
        if record.has_state:
            self._put_state(False)
        if self._options[2] is True and not record.masks.any_received:
            raise BadValueError(
                f"action_masks=True: expected an action mask under {MASK!r} in an observation or "
                f"info of reset, got none for {record.agent_set.agents}"
            )
        return record.flat, info

    def step(self, action: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], float, bool, bool, Any]:
        """Step the environment with the active agents' actions."""
        return self._store_step(self.env.step(self._actions(action)))

    def _actions(self, action: NDArray[np.uint8]) -> Any:
        """Prepare the record for a step, and return the step's actions by agent."""
        record = self._record
        agent_set = record.agent_set
        if agent_set is not record.prepared_for:
            record.prepare(agent_set)
        return agent_set.actions(action)

    def _store_step(self, result: Any) -> tuple[NDArray[np.uint8], float, bool, bool, Any]:
        record = self._record
        agent_set = record.agent_set
        try:
            observations, rewards, terminated, truncated, infos = result
        except (TypeError, ValueError):
            raise BadValueError(
                "step: expected a tuple (observations, rewards, terminations, truncations, infos), "
                f"got {describe(result)}"
            ) from None
        record.put(observations, rewards, terminated, truncated)
        info = record.merge_infos(infos)
        remaining = self.env.agents
        if type(remaining) is not list:
            remaining = agent_list(remaining)
        if record.has_flags or remaining != agent_set.agents:
            remaining = record.change_agents(remaining, observations)
        if record.has_state:
            self._put_state(not remaining)
        return record.flat, 0.0, not remaining, False, info

    def _put_state(self, over: bool) -> None:
        """Store the state. If ``state()`` fails after an episode's last step, keep the old one."""
        before = [array.copy() for array in self._record.state_arrays] if over else []
        try:
            state = self.env.state
            self._record.store(-1, state() if callable(state) else state)
        except Exception as error:
            if not over:
                reason = f"state() raised {type(error).__name__}: {error}"
                if isinstance(error, BadValueError):
                    reason = f"{error} from state()"
                raise BadValueError(
                    f"invalid state: {reason}; if you need no states, use state=False"
                ) from error
            for array, value in zip(self._record.state_arrays, before, strict=True):
                array[...] = value

    def _merge_infos(self, infos: Any) -> dict[Any, Any]:
        """Merge the agents' infos into one dict, without the action masks."""
        return self._record.merge_infos(infos)


def _common_reward_space(env: Any, agents: Sequence[Any]) -> spaces.Box | None:
    """Return the space of the agents' vector rewards, from ``reward_spaces``; None for numbers."""
    given = getattr(env, "reward_spaces", None)
    if given is None:  # PettingZoo's conversion wrappers hide it
        given = getattr(getattr(env, "unwrapped", None), "reward_spaces", None)
    if not isinstance(given, Mapping):
        return None
    found = [given.get(agent) for agent in agents]
    shapes = {getattr(space, "shape", None) for space in found}
    first = found[0]
    if len(shapes) == 1 and isinstance(first, spaces.Box) and len(first.shape) == 1:
        return first
    if any(isinstance(space, spaces.Box) and space.shape for space in found):
        raise BadValueError(
            "reward_spaces: expected a Box of the same shape (k,) for each agent, got "
            f"{dict(zip(agents, found, strict=True))}"
        )
    return None


def _as_parallel(env: Any) -> Any:
    """Convert an environment from PettingZoo's turn-based API to its parallel API."""
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
        raise BadValueError(
            f"{describe(env)} is turn-based (AEC), and its metadata lack is_parallelizable=True: "
            "expected an environment whose agents can act simultaneously"
        )
    with naming_extra(env):
        conversions = importlib.import_module("pettingzoo.utils.conversions")
    return conversions.aec_to_parallel(env)
