"""Results of multi-agent steps as one row per agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStep


class AgentRows:
    """Results of the last step as one row per agent of each environment."""

    def __init__(self, envs: MultiAgentVecEnv, on_death: str) -> None:
        if on_death not in ("pad", "raise"):
            raise ValueError(f"on_death: expected 'pad' or 'raise', got {on_death!r}")
        if not envs.is_one:
            raise ValueError(
                "per_agent_rows: expected agents with equal spaces and no groups, got groups "
                f"{envs.groups} with observation spaces {envs.observation_space} and action spaces "
                f"{envs.action_space}"
            )
        self.envs = envs
        self.num_rows = envs.num_envs * envs.num_agents
        self.observation_space = envs.observation_space[envs.agents[0]]
        self.action_space = envs.action_space[envs.agents[0]]
        self._raises = on_death == "raise"
        self.obs: Any = None
        self.final_obs: Any = None
        self.masks: NDArray[np.bool_] | None = None

    def reset(self, seed: int | Sequence[int | None] | None, options: Any) -> None:
        """Start a new episode in every environment."""
        self._take(self.envs.reset(seed=seed, options=options))

    def step_async(self, actions: Any) -> None:
        """Start a step with one action per row."""
        shape = self.envs.num_envs, self.envs.num_agents
        self.envs.step_async(_unflatten_agents(actions, shape))

    def step_wait(self) -> None:
        """Wait for the pending step and store its results."""
        self._take(self.envs.step_wait())

    def _take(self, step: MultiAgentStep) -> None:
        following = step.next()
        if self._raises and not following.alive.all():
            env, place = np.argwhere(~following.alive)[0].tolist()
            raise RuntimeError(
                f"environment {env}: agent {self.envs.agents[place]!r} is inactive, but the "
                "episode continues: use on_death='pad' to pad its row with zeros"
            )
        terminated, truncated = step.ends()
        # If a worker failed, no agent of its environments acted, and active agents are truncated.
        failed = truncated & ~step.acted.any(axis=1, keepdims=True)
        transitions = step.acted | failed
        # Padding ends one step before the inactive agent becomes active.
        self.terminated = _flatten_agents(np.where(transitions, terminated, following.alive))
        self.truncated = _flatten_agents(truncated & transitions)
        self.obs = _flatten_agents(_zeroed(following.obs, ~following.alive))
        self.final_obs = _flatten_agents(step.obs)
        self.rewards = _flatten_agents(_zeroed(step.rewards, ~step.acted))
        self.acted = _flatten_agents(step.acted)
        self.masks = (
            None if following.action_masks is None else _flatten_agents(following.action_masks)
        )


def _zeroed(batch: Any, where: NDArray[np.bool_]) -> Any:
    """Return a copy of a batch with zeros at ``where``."""
    if isinstance(batch, dict):
        return {key: _zeroed(part, where) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_zeroed(part, where) for part in batch)
    copy = batch.copy()
    copy[where] = 0
    return copy


def _flatten_agents(batch: Any) -> Any:
    """Merge the first two axes of a batch."""
    if isinstance(batch, dict):
        return {key: _flatten_agents(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(_flatten_agents, batch))
    return np.ascontiguousarray(batch).reshape(-1, *batch.shape[2:])


def _unflatten_agents(batch: Any, shape: tuple[int, int]) -> Any:
    """Split the first axis of a batch into environments and agents."""
    if isinstance(batch, dict):
        return {key: _unflatten_agents(part, shape) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_unflatten_agents(part, shape) for part in batch)
    batch = np.asarray(batch)
    return batch.reshape(*shape, *batch.shape[1:]) if len(batch) == shape[0] * shape[1] else batch
