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
from xuance_envs.multi_agent.step import MultiAgentStart, MultiAgentStep
from xuance_envs.vector_envs.aliases import Uncopyable

_Step = tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


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

    def reset(self, seed: int | Sequence[int | None] | None, options: Any) -> tuple[Any, Any]:
        step = self.envs.reset(seed=seed, options=options)
        return self._inputs(step, step.next())

    def step_async(self, actions: Any) -> None:
        self.envs.step_async(map_batch(self._unflattened, actions))

    def _unflattened(self, batch: Any) -> NDArray[Any]:
        """Split the axis of rows into environments and agents, unless its length is wrong."""
        array: NDArray[Any] = np.asanyarray(batch)  # masked arrays are refused later
        if len(array) != self.num_rows:
            return array  # the environments raise an error
        return array.reshape(self.envs.num_envs, self.envs.num_agents, *array.shape[1:])

    def step_wait(self) -> _Step:
        """Return the results of a step in the form of Gymnasium's ``VectorEnv.step``."""
        step = self.envs.step_wait()
        following = step.next()
        obs, infos = self._inputs(step, following)
        terminated, truncated = step.ends()
        # If a worker failed, no agent of its environments acted, and active agents are truncated.
        failed = truncated & ~step.acted.any(axis=1, keepdims=True)
        transitions = step.acted | failed
        # Padding ends one step before the inactive agent becomes active.
        terminated = _flattened(np.where(transitions, terminated, following.alive))
        truncated = _flattened(truncated & transitions)
        ended = terminated | truncated
        if ended.any():
            final, batch = np.full(self.num_rows, None, object), map_batch(_flattened, step.obs)
            for i in np.flatnonzero(ended).tolist():
                final[i] = _copied_row(batch, i)
            info = {"acted": infos["acted"] & ended, "_acted": ended}
            infos |= {"final_obs": final, "_final_obs": ended}
            infos |= {"final_info": info, "_final_info": ended}
        return obs, _flattened(self.envs.exact_rewards, ~step.acted), terminated, truncated, infos

    def _inputs(
        self, step: MultiAgentStep, following: MultiAgentStart
    ) -> tuple[Any, dict[str, Any]]:
        """Return the rows of the next observations, and the infos."""
        if self._raises and not following.alive.all():
            env, place = np.argwhere(~following.alive)[0].tolist()
            raise RuntimeError(
                f"environment {env}: agent {self.envs.agents[place]!r} is inactive, but the "
                "episode continues: use on_death='pad' to pad its row with zeros"
            )
        every = np.ones(self.num_rows, np.bool_)
        infos: dict[str, Any] = {"acted": _flattened(step.acted), "_acted": every}
        if following.action_masks is not None:
            masks = _flattened(following.action_masks)
            infos |= {"action_mask": masks, "_action_mask": every}
        return map_batch(partial(_flattened, zero_at=~following.alive), following.obs), infos


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
        return self._rows.reset(seed, options)

    def step(self, actions: Any) -> _Step:
        self._rows.step_async(actions)
        return self._rows.step_wait()

    def render(self) -> tuple[Any, ...]:
        return tuple(self._rows.envs.render())

    def close_extras(self, **kwargs: Any) -> None:
        self._rows.envs.close()


def _flattened(array: NDArray[Any], zero_at: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Merge the axes of environments and agents; set the rows in ``zero_at`` to 0, in a copy."""
    if zero_at is not None:
        array = array.copy()
        array[zero_at] = 0
    envs, agents, *shape = array.shape
    return np.ascontiguousarray(array).reshape(envs * agents, *shape)


def _copied_row(batch: Any, i: int) -> Any:
    return map_batch(lambda array: array[i].copy(), batch)
