"""Stable-Baselines3 vectorized environment in which each agent is one sub-environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.multi_agent.agent_rows import AgentRows
from xuance_envs.vector_envs.aliases import Uncopyable


class SB3Rows(Uncopyable, VecEnv):
    """Rows of agents as a Stable-Baselines3 vectorized environment.

    :func:`~xuance_envs.multi_agent.rows.per_agent_rows` creates it. Infos have ``acted``. Infos of
    rows that ended also have ``terminal_observation`` and ``TimeLimit.truncated``. If the row was
    not padding, ``episode`` has the return and length.
    """

    def __init__(self, rows: AgentRows) -> None:
        self._rows = rows
        self._masks: Any = None
        self.render_mode = rows.envs.render_mode
        super().__init__(rows.num_rows, rows.observation_space, rows.action_space)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed all rows of environment i with ``seed + i`` at the next reset."""
        seeds = super().seed(seed)
        agents = self._rows.envs.num_agents
        self._seeds = [seeds[row // agents] for row in range(self.num_envs)]
        return self._seeds

    def reset(self) -> Any:
        """Start a new episode in every environment, with the seeds and options set earlier."""
        seeds = self._seeds[:: self._rows.envs.num_agents]
        options = self._options[0]
        if any(each != options for each in self._options):
            raise ValueError(
                f"set_options: expected the same options for all rows, got {self._options}"
            )
        obs, infos = self._rows.reset(None if None in seeds else seeds, options or None)
        self._masks = infos.get("action_mask")
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:] = 0, 0
        return obs

    def step_async(self, actions: Any) -> None:
        self._rows.step_async(actions)

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, columns = self._rows.step_wait()
        self._masks = columns.get("action_mask")
        self._returns += rewards
        self._lengths += columns["acted"]
        infos: list[dict[str, Any]] = [{"acted": acted} for acted in columns["acted"].tolist()]
        dones = terminated | truncated
        for i in np.flatnonzero(dones).tolist():
            info = infos[i]
            info["terminal_observation"] = columns["final_obs"][i]
            info["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            if self._lengths[i]:
                info["episode"] = {"r": float(self._returns[i]), "l": int(self._lengths[i])}
            self._returns[i] = self._lengths[i] = 0
        return obs, as_float32(rewards), dones, infos

    def close(self) -> None:
        self._rows.envs.close()

    def get_images(self) -> Sequence[Any]:
        """Render each environment, and repeat its image for each of its rows."""
        frames = self._rows.envs.render()
        return [frame for frame in frames for _ in range(self._rows.envs.num_agents)]

    def has_attr(self, attr_name: str) -> bool:
        """Return whether an attribute exists, or for ``"action_masks"`` whether masks exist."""
        if attr_name == "action_masks":
            return self._masks is not None
        return bool(super().has_attr(attr_name))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Read an attribute of the environments of some rows."""
        return self._per_row(indices, partial(self._rows.envs.get_attr, attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environments of some rows to one value."""
        envs = sorted(set(self._envs_of(indices)))
        self._rows.envs.set_attr(attr_name, [value] * len(envs), envs)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some rows' environments; ``"action_masks"`` reads the rows' masks."""
        if method_name == "action_masks" and self._masks is not None:
            return [self._masks[i] for i in self._get_indices(indices)]
        call = partial(self._rows.envs.call, method_name, *method_args, **method_kwargs)
        return self._per_row(indices, call)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each row, because rows have no wrappers."""
        return [False for _ in self._get_indices(indices)]

    def _per_row(self, indices: Any, function: Callable[..., Sequence[Any]]) -> list[Any]:
        """Call a function once with all environments of some rows; return a value per row."""
        envs = self._envs_of(indices)
        unique = sorted(set(envs))
        value_of = dict(zip(unique, function(env_ids=unique), strict=True))
        return [value_of[env] for env in envs]

    def _envs_of(self, indices: Any) -> list[int]:
        return [int(i) // self._rows.envs.num_agents for i in self._get_indices(indices)]
