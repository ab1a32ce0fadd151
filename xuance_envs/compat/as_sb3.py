"""Any ``VecEnv`` as a Stable-Baselines3 ``VecEnv``, for its algorithms and wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs.compat.sb3 import TRUNCATED_KEY, BaseSB3VecEnv, Indices
from xuance_envs.compat.stepping import as_rows, checked_number_rewards, exchange_ended
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.serialization import copy_of
from xuance_envs.state.checking import describe_difference
from xuance_envs.vector_envs.aliases import Uncopyable
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["SB3VecEnv", "to_sb3"]


def to_sb3(vec_env: VecEnv) -> SB3VecEnv:
    """Convert a vectorized environment to a ``stable_baselines3.common.vec_env.VecEnv``.

    Args:
        vec_env: the vectorized environment; closing the result closes it, too.

    Returns:
        A Stable-Baselines3 vectorized environment. It resets environments in the step that ends
        their episode. The episode's last observation is in ``infos[i]["terminal_observation"]``.

    Raises:
        ValueError: rewards are vectors; convert ``ScalarizeRewards(vec_env, weights)`` instead.

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


class SB3VecEnv(Uncopyable, BaseSB3VecEnv):
    """Stable-Baselines3 ``VecEnv`` around a ``VecEnv`` of this package; see :func:`to_sb3`.

    Attributes:
        vec_env (VecEnv): the vectorized environment.
    """

    def __init__(self, vec_env: VecEnv) -> None:
        self.vec_env = vec_env = checked_number_rewards("to_sb3", vec_env)
        self._layout = SpaceLayout(vec_env.observation_space)
        super().__init__(vec_env.num_envs, vec_env.observation_space, vec_env.action_space)

    def reset(self) -> Any:
        """Reset all environments with the seeds and options set earlier.

        Returns:
            The first observations, ``(num_envs, *obs_shape)``; a dict or tuple of arrays for Dict
            and Tuple spaces. The infos are in ``reset_infos``.
        """
        options = [each or None for each in self._options]
        if any(describe_difference(each, options[0]) is not None for each in options):
            for env, (seed, each) in enumerate(zip(self._seeds, options, strict=True)):
                _, (self.reset_infos[env],) = self.vec_env.reset(
                    seed=[seed], options=each, env_ids=[env]
                )
        else:
            self.reset_infos = list(self.vec_env.reset(seed=self._seeds, options=options[0])[1])
        self._reset_seeds()
        self._reset_options()
        return copy_of(self.vec_env.buf_obs)

    def step_async(self, actions: Any) -> None:
        """Start a step; see ``vec_env.step`` for the actions and errors."""
        self.vec_env.step_async(as_rows(self.action_space, actions))

    def step_wait(self) -> Any:
        """Wait for the step.

        The results are those of :meth:`~xuance_envs.compat.sb3.DummyVecEnv.step_wait`.
        """
        obs, rewards, terminated, truncated, given = self.vec_env.step_wait()
        dones = terminated | truncated
        infos = [dict(info) for info in given]
        for info, only_truncated in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info[TRUNCATED_KEY] = only_truncated
        if envs := dones.nonzero()[0].tolist():
            first = [infos[env].pop("reset_obs") for env in envs]
            final = exchange_ended(self.vec_env, self._layout, obs, envs, first)
            for env, last in zip(envs, final, strict=True):
                infos[env]["terminal_observation"] = last
                self.reset_infos[env] = infos[env].pop("reset_info")
        return copy_of(self.vec_env.buf_obs), rewards.copy(), dones, infos

    def close(self) -> None:
        """Close the vectorized environment."""
        self.vec_env.close()

    def get_images(self) -> Sequence[Any]:
        """Return a list with a frame of each environment."""
        return self.vec_env.render()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return a list with an attribute of each environment in ``indices``, or of all if None."""
        if attr_name == "render_mode":  # not every environment has it
            return [self.vec_env.render_mode for _ in self._ids(indices)]
        return list(self.vec_env.get_attr(attr_name, self._ids(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of each environment in ``indices``, or of all if None, to one value."""
        ids = self._ids(indices)
        self.vec_env.set_attr(attr_name, [value] * len(ids), ids)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each environment in ``indices``, or of all if None; return a list."""
        ids = self._ids(indices)
        return list(self.vec_env.call(method_name, *method_args, env_ids=ids, **method_kwargs))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Return False for each environment, because wrappers are not accessible."""
        return [False for _ in self._ids(indices)]

    def _ids(self, indices: Indices) -> list[int]:
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]
