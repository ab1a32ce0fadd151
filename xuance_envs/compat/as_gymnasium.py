"""Any ``VecEnv`` as a vector environment of Gymnasium's, for Gymnasium's vector wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from xuance_envs.compat.batched_infos import InfoBatcher
from xuance_envs.compat.stepping import FinishedStep, raise_original
from xuance_envs.compat.vector_arguments import as_batch, parse_reset
from xuance_envs.compat.vector_results import StepResult
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["GymnasiumVectorEnv", "to_gymnasium"]


def to_gymnasium(vec_env: VecEnv) -> GymnasiumVectorEnv:
    """Makes a ``gymnasium.vector.VectorEnv`` of a vector environment of this package.

    Args:
        vec_env: any; it is closed with the one returned.

    Returns:
        One that resets in the same step (``AutoresetMode.SAME_STEP``): observations are the first
        ones of next episodes where one ended, and the last ones are in ``infos["final_obs"]``.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env
        >>> from xuance_envs.compat import to_gymnasium
        >>> envs = to_gymnasium(DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3))
        >>> envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
        >>> infos["episode_score"]
        array([1., 1., 1.])
        >>> envs.close()
    """
    return GymnasiumVectorEnv(vec_env)


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """See :func:`to_gymnasium`.

    Args:
        vec_env: the vector environment.

    Attributes:
        vec_env (VecEnv): the vector environment.
        autoreset_mode (AutoresetMode): ``SAME_STEP``, as ``metadata["autoreset_mode"]`` has it.
    """

    def __init__(self, vec_env: VecEnv) -> None:
        self.vec_env = vec_env
        self.num_envs = vec_env.num_envs
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.metadata = {**vec_env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = vec_env.render_mode
        self.single_observation_space = vec_env.observation_space
        self.single_action_space = vec_env.action_space
        self.observation_space = batch_space(vec_env.observation_space, self.num_envs)
        self.action_space = batch_space(vec_env.action_space, self.num_envs)
        self._layout = SpaceLayout(vec_env.observation_space)
        self._batcher = InfoBatcher(self)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those of ``options["reset_mask"]``.

        Returns:
            All environments' observations, and the infos of those that were reset.
        """
        envs, seeds, options = parse_reset(self.num_envs, seed, options)
        part = len(envs) < self.num_envs
        how = seed if seed is None or not part else seeds
        ids = envs.tolist() if part else None
        _, infos = raise_original(
            lambda: self.vec_env.reset(seed=how, options=options, env_ids=ids)
        )
        batched: dict[str, Any] = {}
        for env, info in zip(envs.tolist(), infos, strict=True):
            batched = self._add_info(batched, info, env)
        return self._observations(), batched

    def step(self, actions: Any) -> StepResult:
        """Steps all environments once.

        Returns:
            Observations, rewards ``(num_envs,)`` float64, terminations and truncations
            ``(num_envs,)`` bool, and infos: arrays by key, each with a mask under ``_key``.
        """
        vec_env = self.vec_env
        actions = as_batch(self.single_action_space, actions)
        obs, _, terminated, truncated, infos = raise_original(vec_env.step, actions)
        envs, first, stepped = self._ends(infos, terminated | truncated)
        if len(envs):
            final = self._take_final(obs, envs, first)
            obs = self._observations()
        else:
            final = []
        if stepped is not None:
            batched = self._batcher.batch_step(stepped, final, self._add_info)
        else:
            batched = self._one_by_one(infos, envs, final)
        return obs, vec_env.exact_rewards, terminated.copy(), truncated.copy(), batched

    def _ends(
        self, infos: Any, ended: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], list[Any], FinishedStep | None]:
        """The environments whose episode ended, the next ones' first observations, and infos."""
        if isinstance(infos, StepInfos):
            batch, ends = infos.parts
            if ends is None:
                return np.arange(0), [], FinishedStep(batch, None, None)
            envs, reset_infos = ends.resets()
            return envs, ends.observations(envs), FinishedStep(batch, envs, reset_infos)
        (envs,) = ended.nonzero()
        return envs, [infos[env]["reset_obs"] for env in envs.tolist()], None

    def _take_final(self, obs: Any, envs: NDArray[np.intp], first: Sequence[Any]) -> list[Any]:
        """Makes ``buf_obs`` what the environments act on; the last observations of episodes."""
        parts, held = self._layout.flatten(obs), self._layout.flatten(self.vec_env.buf_obs)
        final = []
        for env, observation in zip(envs.tolist(), first, strict=True):
            last = self._layout.unflatten([part[env] for part in parts])
            final.append(copy_of(last))
            for mine, its in zip(held, self._layout.flatten(observation), strict=True):
                mine[env] = its
        return final

    def _observations(self) -> Any:
        """The observations that the environments act on, for the caller to keep."""
        parts = [
            tuple(map(copy_of, part)) if isinstance(part, list) else part.copy()
            for part in self._layout.flatten(self.vec_env.buf_obs)
        ]
        return self._layout.unflatten(parts)

    def _one_by_one(
        self, infos: Sequence[dict[Any, Any]], envs: NDArray[np.intp], final: Sequence[Any]
    ) -> dict[str, Any]:
        last = dict(zip(envs.tolist(), final, strict=True))
        batched: dict[str, Any] = {}
        for env, given in enumerate(infos):
            info = dict(given)
            if env in last:
                del info["reset_obs"]
                reset_info = info.pop("reset_info")
                ends = {"final_obs": last[env], "final_info": info}
                batched = self._add_info(batched, ends, env)
                info = reset_info
            batched = self._add_info(batched, info, env)
        return batched

    def render(self) -> tuple[Any, ...]:
        """A frame of each environment."""
        return tuple(self.vec_env.render())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each environment."""
        results: tuple[Any, ...] = raise_original(lambda: self.vec_env.call(name, *args, **kwargs))
        return results

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return self.vec_env.get_attr(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute: a list or tuple gives each environment its own value."""
        self.vec_env.set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the vector environment."""
        self.vec_env.close()
