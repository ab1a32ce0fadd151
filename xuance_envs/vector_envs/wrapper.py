"""Base class for wrappers of vectorized environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs._override import override
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import EnvIds, Seeds
from xuance_envs.vector_envs.statistics import WorkerStatistics
from xuance_envs.vector_envs.vector_env import StepBatch, StepResult, VecEnv

__all__ = ["VecEnvDelegate", "VecEnvWrapper", "checked_vec_env"]

__getattr__ = deprecated_aliases(__name__, AroundVecEnv="VecEnvDelegate")


class VecEnvDelegate:
    """Mixin that forwards operations to the ``VecEnv`` that an object contains.

    Attributes:
        vec_env (VecEnv): the wrapped vectorized environment.
    """

    vec_env: VecEnv

    @property
    def closed(self) -> bool:
        """True once the vectorized environment is closed."""
        return self.vec_env.closed

    @property
    def waiting(self) -> bool:
        """True while a step is pending."""
        return self.vec_env.waiting

    def async_reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.async_reset`."""
        self.vec_env.async_reset(seed=seed, options=options)

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.statistics`."""
        return self.vec_env.statistics()

    def call(self, name: str, *args: Any, env_ids: EnvIds = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.call`."""
        return self.vec_env.call(name, *args, env_ids=env_ids, **kwargs)

    def get_attr(self, name: str, env_ids: EnvIds = None) -> tuple[Any, ...]:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.get_attr`."""
        return self.vec_env.get_attr(name, env_ids)

    def set_attr(self, name: str, values: Any, env_ids: EnvIds = None) -> None:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.set_attr`."""
        self.vec_env.set_attr(name, values, env_ids)

    def save_state(self, env_ids: EnvIds = None, *, verify: bool = False) -> EnvStates:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.save_state`."""
        return self.vec_env.save_state(env_ids, verify=verify)

    def render(self, mode: str | None = None, env_ids: EnvIds = None) -> list[Any]:
        """Call ``vec_env``'s :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.render`."""
        return self.vec_env.render(mode, env_ids)


class VecEnvWrapper(VecEnvDelegate, VecEnv):
    """Base class for wrappers that forward all operations to another vectorized environment.

    Attributes that the wrapper lacks are looked up on the wrapped vectorized environment. Closing
    either one closes both. To transform actions or results, derive from
    :class:`~xuance_envs.transforms.transform.Transform` instead.

    Args:
        vec_env: the vectorized environment to wrap.
        observation_space: observation space of a single environment, if it differs.
        action_space: action space of a single environment, if it differs.

    Attributes:
        vec_env (VecEnv): the wrapped vectorized environment.

    Raises:
        TypeError: ``vec_env`` is not a :class:`~xuance_envs.vector_envs.vector_env.VecEnv`.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env, VecEnvWrapper
        >>> class Loud(VecEnvWrapper):
        ...     def reset(self, **kwargs):
        ...         print("reset")
        ...         return super().reset(**kwargs)
        >>> with Loud(DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     len(envs.envs)
        reset
        3
    """

    def __init__(
        self,
        vec_env: VecEnv,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
    ) -> None:
        self.vec_env = vec_env = checked_vec_env(type(self).__name__, vec_env)
        super().__init__(
            vec_env.num_envs,
            vec_env.observation_space if observation_space is None else observation_space,
            vec_env.action_space if action_space is None else action_space,
            max_episode_steps=vec_env.max_episode_steps,
            render_mode=vec_env.render_mode,
            metadata=vec_env.metadata,
            reward_space=vec_env.reward_space,
        )
        self.checks_actions = vec_env.checks_actions
        self.autotuned = vec_env.autotuned
        for buffer in ("buf_rews", "buf_dones", "buf_truncations", "buf_infos"):
            delattr(self, buffer)  # forwarded by __getattr__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "vec_env":
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        return getattr(self.vec_env, name)

    @property
    def buf_obs(self) -> Any:
        """The latest observations, in a writable array."""
        return self.vec_env.buf_obs

    @buf_obs.setter
    def buf_obs(self, batch: Any) -> None:
        self.vec_env.buf_obs = batch

    @property
    @override
    def exact_rewards(self) -> NDArray[np.float64]:
        return self.vec_env.exact_rewards

    @override
    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None, env_ids: EnvIds = None
    ) -> tuple[Any, StepInfos]:
        return self.vec_env.reset(seed=seed, options=options, env_ids=env_ids)

    @override
    def step_async(self, actions: Any) -> None:
        self.vec_env.step_async(actions)

    @override
    def step_wait(self) -> StepResult:
        return self.vec_env.step_wait()

    @override
    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        self.vec_env.send(actions, env_ids)

    @override
    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> StepBatch:
        return self.vec_env.recv(min_envs, timeout)

    @override
    def action_masks(self) -> Any:
        return self.vec_env.action_masks()

    @override
    def load_state(self, state: EnvStates, env_ids: EnvIds = None) -> tuple[Any, StepInfos]:
        return self.vec_env.load_state(state, env_ids)

    @override
    def clone_state(
        self, src_ids: int | Sequence[int], dst_ids: int | Sequence[int], *, fork_rng: bool = False
    ) -> tuple[Any, StepInfos]:
        return self.vec_env.clone_state(src_ids, dst_ids, fork_rng=fork_rng)

    def close_extras(self) -> None:
        """Close the wrapped vectorized environment."""
        self.vec_env.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vec_env!r})"


def checked_vec_env(name: str, vec_env: VecEnv) -> VecEnv:
    """Return ``vec_env``; raise an error that begins with ``name`` unless it is a ``VecEnv``."""
    if not isinstance(vec_env, VecEnv):
        raise TypeError(
            f"{name}: expected a VecEnv, got {type(vec_env).__name__}; "
            "convert a Gymnasium vector environment with xuance_envs.compat.from_gymnasium"
        )
    return vec_env
