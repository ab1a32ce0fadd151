"""Any ``VecEnv`` as one of Stable-Baselines3's, for its algorithms and wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs.compat.sb3 import TRUNCATED_KEY, BaseSB3VecEnv, Indices
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["SB3VecEnv", "to_sb3"]


def to_sb3(vec_env: VecEnv) -> SB3VecEnv:
    """Makes a ``stable_baselines3.common.vec_env.VecEnv`` of a vector environment of this package.

    Args:
        vec_env: any, within transforms or not; it is closed with the one returned.

    Returns:
        One that resets in the same step, as all of Stable-Baselines3's do: the last observation of
        an episode is ``infos[i]["terminal_observation"]``.

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env
        >>> from xuance_envs.compat import to_sb3
        >>> from xuance_envs.transforms import NormalizeObservations
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> envs = to_sb3(NormalizeObservations(envs))
        >>> observations = envs.reset()
        >>> observations, rewards, dones, infos = envs.step([0, 1, 0])
        >>> infos[0]["TimeLimit.truncated"], infos[0]["episode_score"]
        (False, 1.0)
        >>> envs.close()
    """
    return SB3VecEnv(vec_env)


class SB3VecEnv(BaseSB3VecEnv):
    """See :func:`to_sb3`.

    Args:
        vec_env: the vector environment.

    Attributes:
        vec_env (VecEnv): the vector environment.
    """

    def __init__(self, vec_env: VecEnv) -> None:
        self.vec_env = vec_env
        self._layout = SpaceLayout(vec_env.observation_space)
        super().__init__(vec_env.num_envs, vec_env.observation_space, vec_env.action_space)

    def reset(self) -> Any:
        """Resets all environments, with the seeds and options that were set; the observations."""
        options = [each or None for each in self._options]
        if any(each != options[0] for each in options):
            self._reset_each(options)
        else:
            self.reset_infos = list(self.vec_env.reset(seed=self._seeds, options=options[0])[1])
        self._reset_seeds()
        self._reset_options()
        return self._observations()

    def _reset_each(self, options: Sequence[dict[str, Any] | None]) -> None:
        for env, (seed, each) in enumerate(zip(self._seeds, options, strict=True)):
            _, (info,) = self.vec_env.reset(seed=[seed], options=each, env_ids=[env])
            self.reset_infos[env] = info

    def step_async(self, actions: Any) -> None:
        """Starts a step of all environments."""
        self.vec_env.step_async(actions)

    def step_wait(self) -> Any:
        """Waits for the step.

        Returns:
            Observations, rewards ``(num_envs,)`` float32, dones ``(num_envs,)`` bool, and a list of
            info dicts. Where an episode ended, the observation is the first one of the next, and
            the last one is ``infos[i]["terminal_observation"]``.
        """
        obs, rewards, terminated, truncated, given = self.vec_env.step_wait()
        dones = terminated | truncated
        infos = [dict(info) for info in given]
        for info, limit in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info[TRUNCATED_KEY] = limit
        (ended,) = dones.nonzero()
        if len(ended):
            last, held = self._layout.flatten(obs), self._layout.flatten(self.vec_env.buf_obs)
            for env in ended.tolist():
                info = infos[env]
                parts = [copy_of(part[env]) for part in last]
                info["terminal_observation"] = self._layout.unflatten(parts)
                for mine, its in zip(
                    held, self._layout.flatten(info.pop("reset_obs")), strict=True
                ):
                    mine[env] = its
                self.reset_infos[env] = info.pop("reset_info")
        return self._observations(), rewards.copy(), dones, infos

    def _observations(self) -> Any:
        """What the environments act on, for the caller to keep."""
        return copy_of(self.vec_env.buf_obs)

    def close(self) -> None:
        """Closes the vector environment."""
        self.vec_env.close()

    def get_images(self) -> Sequence[Any]:
        """A frame of each environment."""
        return self.vec_env.render()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of some environments."""
        if attr_name == "render_mode":  # which not every environment has
            return [self.vec_env.render_mode for _ in self._ids(indices)]
        return list(self.vec_env.get_attr(attr_name, self._ids(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of some environments, the same for all."""
        ids = self._ids(indices)
        self.vec_env.set_attr(attr_name, [value] * len(ids), ids)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of some environments."""
        ids = self._ids(indices)
        return list(self.vec_env.call(method_name, *method_args, env_ids=ids, **method_kwargs))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether some environments are wrapped: by this, it cannot be told, so False each."""
        return [False for _ in self._ids(indices)]

    def _ids(self, indices: Indices) -> list[int]:
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]
