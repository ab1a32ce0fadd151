"""Adapter of XuanCe's multi-agent environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.group.single_env import to_bool
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.infos import shared_info_key
from xuance_envs.multi_agent.team import agent_list

WRAPPER_INFO_KEYS = ("agent_mask", "avail_actions", "state", "episode_step", "episode_score")
"""Info keys that XuanCe's wrapper adds, and that vectorized environments compute themselves."""


# Saved states contain this class's name and module.
class XuanCeAgentsEnv(AgentsEnv):
    """Adapter of XuanCe's ``RawMultiAgentEnv``, which takes actions of inactive agents, too."""

    infos_by_agent = False

    def _checked(self, env: Any) -> Any:
        if not agent_list(getattr(env, "agents", ())):
            raise BadValueError(f"expected at least one agent in agents of {env!r}, got none")
        return env

    @override
    def _store_reset(self, result: Any) -> tuple[NDArray[np.uint8], dict[Any, Any]]:
        stored = super()._store_reset(result)
        fields = self._record.fields
        fields["alive"][...] = fields["agent_mask"][...] = self._agent_mask()
        return stored

    @override
    def _actions(self, action: NDArray[np.uint8]) -> Any:
        self._acted = self._record.fields["alive"].copy()
        return super()._actions(action)

    @override
    def _store_step(self, result: Any) -> tuple[NDArray[np.uint8], float, bool, bool, Any]:
        record = self._record
        fields, agent_set = record.fields, record.agent_set
        try:
            observations, rewards, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise BadValueError(
                "step: expected a tuple (observations, rewards, terminated, truncated, info), "
                f"got {describe(result)}"
            ) from None
        if type(truncated) is not bool:
            truncated = to_bool("truncated", truncated)
        every = dict.fromkeys(agent_set.agents, truncated)
        record.put(observations, rewards, terminated, every)
        merged = self._merge_infos(info)
        over = truncated or bool(fields["terminated"].all())
        fields["acted"][...] = self._acted
        fields["agent_mask"][...] = self._agent_mask()
        fields["alive"][...] = False if over else fields["agent_mask"]
        if record.has_state:
            self._put_state(over)
        return record.flat, 0.0, over, False, merged

    @override
    def xuance_infos(self) -> tuple[dict[str, Any], dict[str, Any]]:
        env = self.env
        env_info, groups_info = (
            getattr(env, name) if hasattr(env, name) else getattr(env, f"get_{name}")()
            for name in ("env_info", "groups_info")
        )
        return env_info, groups_info

    def _agent_mask(self) -> Any:
        """Return one bool per agent, or a single True if the environment has no agent mask."""
        alive = _method_or_attribute(self.env, "agent_mask")
        return True if alive is None else [bool(alive[agent]) for agent in self._team.agents]

    def _merge_infos(self, infos: Any) -> dict[Any, Any]:
        if not isinstance(infos, Mapping):
            raise BadValueError(f"expected a dict as info, got {describe(infos)}")
        masks = self._record.masks
        env_masks = _method_or_attribute(self.env, "avail_actions") if masks.rows else None
        if env_masks is not None:
            for place, row in masks.rows.items():
                agent = self._team.agents[place]
                masks.put(agent, row, env_masks[agent])
        return {
            shared_info_key(key): value
            for key, value in infos.items()
            if key not in WRAPPER_INFO_KEYS
        }


def _method_or_attribute(env: Any, name: str) -> Any:
    """Return a method's result (XuanCe's environments) or an attribute (XuanCe's wrapper)."""
    value = getattr(env, name, None)
    return value() if callable(value) else value
