"""Any ``VecEnv`` as a Gymnasium vector environment, for Gymnasium's vector wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from xuance_envs.compat.gymnasium_interface import InfoBatching, StepResult, as_batch, parse_reset
from xuance_envs.compat.stepping import checked_number_rewards, exchange_ended, raise_original
from xuance_envs.engine.data.space_layout import SpaceLayout, map_batch
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.aliases import Uncopyable
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["GymnasiumVectorEnv", "to_gymnasium"]


def to_gymnasium(vec_env: VecEnv) -> GymnasiumVectorEnv:
    """Convert a vectorized environment to a ``gymnasium.vector.VectorEnv``.

    Args:
        vec_env: the vectorized environment; closing the result closes it, too.

    Returns:
        A vector environment in ``AutoresetMode.SAME_STEP``: where an episode ended, the observation
        is the next episode's first, and ``infos["final_obs"]`` has the ended episode's last.

    Raises:
        ValueError: rewards are vectors; convert ``ScalarizeRewards(vec_env, weights)`` instead.

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


class GymnasiumVectorEnv(InfoBatching, Uncopyable, gymnasium.vector.VectorEnv):
    """Gymnasium vector environment around a ``VecEnv``; see :func:`to_gymnasium`.

    Attributes:
        vec_env (VecEnv): the vectorized environment.
        autoreset_mode (AutoresetMode): ``SAME_STEP``, also in ``metadata["autoreset_mode"]``.
    """

    closed = True  # until it has a vec_env: Gymnasium's __del__ calls close

    def __init__(self, vec_env: VecEnv) -> None:
        self.vec_env = vec_env = checked_number_rewards("to_gymnasium", vec_env)
        self.num_envs = vec_env.num_envs
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.metadata = {**vec_env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = vec_env.render_mode
        self.single_observation_space = vec_env.observation_space
        self.single_action_space = vec_env.action_space
        self.observation_space = batch_space(vec_env.observation_space, self.num_envs)
        self.action_space = batch_space(vec_env.action_space, self.num_envs)
        self._layout = SpaceLayout(vec_env.observation_space)
        self.closed = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those selected by ``options["reset_mask"]``.

        Arguments and results are those of
        :meth:`SyncVectorEnv.reset() <xuance_envs.compat.gymnasium_sync.SyncVectorEnv.reset>`.
        """
        envs, seeds, options = parse_reset(self.num_envs, seed, options)
        partial = len(envs) < self.num_envs
        reset_seed = seed if seed is None or not partial else seeds
        ids = envs.tolist() if partial else None
        if partial and self.vec_env.waiting:  # left by an interrupt
            self._result(raise_original(self.vec_env.step_wait))
        _, infos = raise_original(
            lambda: self.vec_env.reset(seed=reset_seed, options=options, env_ids=ids)
        )
        return self._observations(), self._merged(zip(envs.tolist(), infos, strict=True), {})

    def step(self, actions: Any) -> StepResult:
        """Step all environments with a batch of actions from ``action_space``.

        Returns:
            The results of
            :meth:`SyncVectorEnv.step() <xuance_envs.compat.gymnasium_sync.SyncVectorEnv.step>`.
            Where an episode ended, ``"final_obs"`` and ``"final_info"`` have its last observation
            and info. The observation and the other infos are the next episode's first.
        """
        actions = as_batch(self.single_action_space, actions)
        if self.vec_env.waiting:  # left by an interrupt; its results are lost
            raise_original(self.vec_env.step_wait)
        return self._result(raise_original(self.vec_env.step, actions))

    def _result(self, result: Any) -> StepResult:
        vec_env, final = self.vec_env, []
        obs, _, terminated, truncated, infos = result
        if isinstance(infos, StepInfos) and infos.are_unread:  # else possibly changed
            if (ends := infos.ends) is not None:
                envs, first = ends.envs.tolist(), ends.observations(ends.envs)
                final = exchange_ended(vec_env, self._layout, obs, envs, first)
            batched = self._step_infos(infos.parts, final)
        else:
            each = [dict(info) for info in infos]
            envs = (terminated | truncated).nonzero()[0].tolist()
            first = [each[env].pop("reset_obs") for env in envs]
            final = exchange_ended(vec_env, self._layout, obs, envs, first)
            resets = [each[env].pop("reset_info") for env in envs]
            starts = dict(zip(envs, zip(final, resets, strict=True), strict=True))
            batched = self._merged(enumerate(each), starts)
        if final:
            obs = self._observations()
        return obs, vec_env.exact_rewards, terminated.copy(), truncated.copy(), batched

    def _observations(self) -> Any:
        """Return a copy of the observations from which the next actions are chosen."""
        return map_batch(
            lambda part: tuple(map(copy_of, part)) if isinstance(part, list) else part.copy(),
            self.vec_env.buf_obs,
        )

    def render(self) -> tuple[Any, ...]:
        """Return a tuple with the result of each environment's ``render``."""
        return tuple(self.vec_env.render())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment; return a tuple of the results."""
        return tuple(raise_original(lambda: self.vec_env.call(name, *args, **kwargs)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return a tuple with an attribute of each environment."""
        return self.vec_env.get_attr(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: one value for all, or a list or tuple of values."""
        self.vec_env.set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the vectorized environment."""
        self.vec_env.close()
