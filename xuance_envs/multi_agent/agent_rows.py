"""Multi-agent results with one row per agent, and a Gymnasium vector environment of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import map_batch
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStep
from xuance_envs.vector_envs.aliases import Uncopyable


class AgentRows:
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
        self._take(self.envs.reset(seed=seed, options=options))

    def step_async(self, actions: Any) -> None:
        self.envs.step_async(map_batch(self._unflattened, actions))

    def step_wait(self) -> None:
        self._take(self.envs.step_wait())

    def _unflattened(self, batch: Any) -> NDArray[Any]:
        """Split the axis of rows into environments and agents, unless its length is wrong."""
        array: NDArray[Any] = np.asanyarray(batch)  # masked arrays are refused later
        if len(array) != self.num_rows:
            return array  # the environments raise an error
        return array.reshape(self.envs.num_envs, self.envs.num_agents, *array.shape[1:])

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
        self.terminated = _flattened(np.where(transitions, terminated, following.alive))
        self.truncated = _flattened(truncated & transitions)
        self.obs = map_batch(partial(_flattened, zero_at=~following.alive), following.obs)
        self.final_obs = map_batch(_flattened, step.obs)
        self.rewards = _flattened(self.envs.exact_rewards, ~step.acted)
        self.acted = _flattened(step.acted)
        masks = following.action_masks
        self.masks = None if masks is None else _flattened(masks)

    def final_obs_of(self, row: int) -> Any:
        """Return a copy of the last observation of a row whose agent's episode ended."""
        return map_batch(lambda array: array[row].copy(), self.final_obs)


class GymnasiumRows(Uncopyable, VectorEnv[Any, Any, Any]):
    """Rows of agents as a Gymnasium vector environment.

    :func:`~xuance_envs.multi_agent.rows.per_agent_rows` creates it. Infos have ``acted`` and, if
    environments provide masks, ``action_mask``. Where a row ended, ``final_obs`` is its last
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
        if options and "reset_mask" in options:
            raise NotImplementedError(
                "options: expected no 'reset_mask', because the rows of an environment cannot be "
                "reset separately"
            )
        self._rows.reset(seed, options)
        return self._rows.obs, self._infos()

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        rows = self._rows
        rows.step_async(actions)
        rows.step_wait()
        infos = self._infos()
        ended = rows.terminated | rows.truncated
        if ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended).tolist():
                final[i] = rows.final_obs_of(i)
            infos["final_obs"], infos["_final_obs"] = final, ended
            infos["final_info"] = {"acted": rows.acted & ended, "_acted": ended}
            infos["_final_info"] = ended
        return rows.obs, rows.rewards, rows.terminated, rows.truncated, infos

    def render(self) -> tuple[Any, ...]:
        return tuple(self._rows.envs.render())

    def close_extras(self, **kwargs: Any) -> None:
        self._rows.envs.close()

    def _infos(self) -> dict[str, Any]:
        rows = self._rows
        every = np.ones(self.num_envs, np.bool_)
        infos: dict[str, Any] = {"acted": rows.acted, "_acted": every}
        if rows.masks is not None:
            infos |= {"action_mask": rows.masks, "_action_mask": every}
        return infos


def _flattened(array: NDArray[Any], zero_at: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Merge the axes of environments and agents; set the rows in ``zero_at`` to 0, in a copy."""
    if zero_at is not None:
        array = array.copy()
        array[zero_at] = 0
    envs, agents, *shape = array.shape
    return np.ascontiguousarray(array).reshape(envs * agents, *shape)
