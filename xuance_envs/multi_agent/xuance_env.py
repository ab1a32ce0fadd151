"""One of XuanCe's environments with many agents as one that steps records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.group.single_env import scalar_of
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.infos import common_name
from xuance_envs.multi_agent.team import Groups, Team

__all__ = ["XuanCeAgentsEnv"]

_BOOL = np.dtype(np.bool_)

OWN_INFO = ("agent_mask", "avail_actions", "state", "episode_step", "episode_score")
"""What XuanCe's wrapper adds to infos, and whoever has many of them knows by itself."""


class XuanCeAgentsEnv(AgentsEnv):
    """An environment of XuanCe's ``RawMultiAgentEnv``, wrapped or not.

    All agents act in every step, those that are dead, too: an environment has an action for them.
    ``agent_mask`` says who is alive. An episode is over where all agents are terminated, or it is
    truncated.
    """

    infos_by_agent = False

    def _checked(self, env: Any) -> Any:
        if not getattr(env, "agents", None):
            raise BadValueError(f"expected at least one agent in agents, got none of {env!r}")
        return env

    def _team(self, groups: Groups | None, state: bool | str, masks: bool | str) -> Team:
        env = self.env
        spaces = env.observation_space, env.action_space
        return self._described(list(env.agents), *spaces, groups, state, masks)

    def _living(self) -> Any:
        return self.described.agents

    def reset(self, **given: Any) -> tuple[NDArray[np.uint8], dict[Any, Any]]:
        """See :class:`~xuance_envs.multi_agent.agents_env.AgentsEnv`."""
        result = super().reset(**given)
        fields = self._record.fields
        fields["alive"][...] = fields["agent_mask"][...] = self._mask_of_agents()
        return result

    def step(self, action: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], float, bool, bool, Any]:
        """See :class:`~xuance_envs.multi_agent.agents_env.AgentsEnv`."""
        record = self._record
        fields = record.fields
        acted = fields["alive"].copy()
        lineup = record.lineup
        if lineup is not record.entered:
            record.enter(lineup)
        result = self.env.step(lineup.actions(action))
        try:
            observations, rewards, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise BadValueError(
                "step: expected a tuple (observations, rewards, terminated, truncated, info), "
                f"got {describe(result)}"
            ) from None
        if type(truncated) is not bool:
            truncated = bool(scalar_of("truncated", truncated, _BOOL))
        every = dict.fromkeys(lineup.agents, truncated)
        record.put(observations, rewards, terminated, every)
        joined = self._joined(info)
        over = truncated or bool(fields["terminated"].all())
        fields["acted"][...] = acted
        fields["agent_mask"][...] = self._mask_of_agents()
        fields["alive"][...] = False if over else fields["agent_mask"]
        if record.has_state:
            record.put_state(self._state())
        return record.flat, 0.0, over, False, joined

    def xuance_infos(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """See :class:`~xuance_envs.multi_agent.agents_env.AgentsEnv`."""
        env = self.env
        infos = [
            getattr(env, name) if hasattr(env, name) else getattr(env, f"get_{name}")()
            for name in ("env_info", "groups_info")
        ]
        return infos[0], infos[1]

    def _mask_of_agents(self) -> Any:
        """Which agents are alive."""
        alive = _asked(self.env, "agent_mask")
        return True if alive is None else [bool(alive[agent]) for agent in self.described.agents]

    def _joined(self, infos: Any) -> dict[Any, Any]:
        if not isinstance(infos, Mapping):
            raise BadValueError(f"expected an info that is a dict, got {describe(infos)}")
        masks = self._record.masks
        given = _asked(self.env, "avail_actions") if masks.rows else None
        if given is not None:
            for place, row in masks.rows.items():
                agent = self.described.agents[place]
                masks.put(agent, row, given[agent])
        return {common_name(key): value for key, value in infos.items() if key not in OWN_INFO}


def _asked(env: Any, name: str) -> Any:
    """What an environment says, which is a method of XuanCe's environments and not of wrappers."""
    value = getattr(env, name, None)
    return value() if callable(value) else value
