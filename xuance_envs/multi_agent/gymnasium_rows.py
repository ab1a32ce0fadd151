"""Rows of agents as a Gymnasium vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from xuance_envs.multi_agent.agent_rows import AgentRows


class GymnasiumRows(VectorEnv[Any, Any, Any]):
    """Rows of agents as a Gymnasium vector environment.

    :func:`~xuance_envs.multi_agent.rows.per_agent_rows` creates it. Infos have ``acted``, and
    ``action_mask`` if environments provide masks. For rows that ended, ``final_obs`` is the last
    observation, and ``final_info`` has ``acted``.
    """

    def __init__(self, rows: AgentRows) -> None:
        self._rows = rows
        self.num_envs = rows.num_rows
        self.single_observation_space = rows.observation_space
        self.single_action_space = rows.action_space
        self.reward_space = rows.envs.reward_space  # read by `from_gymnasium`
        self.observation_space = batch_space(rows.observation_space, self.num_envs)
        self.action_space = batch_space(rows.action_space, self.num_envs)
        self.metadata = {**rows.envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = rows.envs.render_mode

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in every environment."""
        self._rows.reset(seed, options)
        return self._rows.obs, self._infos()

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment once, with one action per row."""
        rows = self._rows
        rows.step_async(actions)
        rows.step_wait()
        infos = self._infos()
        ended = rows.terminated | rows.truncated
        if ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended).tolist():
                final[i] = row_of(rows.final_obs, i)
            infos["final_obs"], infos["_final_obs"] = final, ended
            infos["final_info"] = {"acted": rows.acted & ended, "_acted": ended}
            infos["_final_info"] = ended
        return rows.obs, rows.rewards.astype(np.float64), rows.terminated, rows.truncated, infos

    def render(self) -> tuple[Any, ...]:
        """Render each environment."""
        return tuple(self._rows.envs.render())

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._rows.envs.close()

    def _infos(self) -> dict[str, Any]:
        rows = self._rows
        every = np.ones(self.num_envs, np.bool_)
        infos: dict[str, Any] = {"acted": rows.acted, "_acted": every}
        if rows.masks is not None:
            infos |= {"action_mask": rows.masks, "_action_mask": every}
        return infos


def row_of(batch: Any, i: int) -> Any:
    """Copy one row of a batch."""
    if isinstance(batch, dict):
        return {key: row_of(part, i) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(part, i) for part in batch)
    return batch[i].copy()
