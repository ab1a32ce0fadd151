"""A vector environment around another one, which hands on everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.statistics import WorkerStatistics
from xuance_envs.vector_envs.vector_env import StepBatch, StepResult, VecEnv

__all__ = ["VecEnvDelegate", "VecEnvWrapper", "checked_vec_env"]


class VecEnvDelegate:
    """What is the same of whatever has a vector environment inside: it is handed on as it is.

    Attributes:
        vec_env (VecEnv): the vector environment.
    """

    vec_env: VecEnv

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self.vec_env.closed

    @property
    def waiting(self) -> bool:
        """Whether a step is pending."""
        return self.vec_env.waiting

    def async_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Call the inner environment's ``async_reset``."""
        self.vec_env.async_reset(seed=seed, options=options)

    def statistics(self) -> tuple[WorkerStatistics, ...]:
        """Return the inner environment's ``statistics``."""
        return self.vec_env.statistics()

    def call(
        self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Call the inner environment's ``call``."""
        return self.vec_env.call(name, *args, env_ids=env_ids, **kwargs)

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Call the inner environment's ``get_attr``."""
        return self.vec_env.get_attr(name, env_ids)

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Call the inner environment's ``set_attr``."""
        self.vec_env.set_attr(name, values, env_ids)

    def save_state(self, env_ids: Sequence[int] | None = None) -> EnvStates:
        """Call the inner environment's ``save_state``."""
        return self.vec_env.save_state(env_ids)

    def render(self, mode: str | None = None, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Call the inner environment's ``render``."""
        return self.vec_env.render(mode, env_ids)


class VecEnvWrapper(VecEnvDelegate, VecEnv):
    """Another vector environment, as it is: to derive from.

    What the contract has is handed on to that one, and what it has besides is found on it. Closing
    either closes both. To change what is given and returned, derive from
    :class:`~xuance_envs.transforms.transform.Transform`.

    Args:
        vec_env: the vector environment.
        observation_space: of one environment, if another than its.
        action_space: of one environment, if another than its.

    Attributes:
        vec_env (VecEnv): the vector environment.

    Raises:
        TypeError: it is not a :class:`~xuance_envs.vector_envs.vector_env.VecEnv`.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env, VecEnvWrapper
        >>> class Loud(VecEnvWrapper):
        ...     def reset(self, **how):
        ...         print("reset")
        ...         return super().reset(**how)
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
        )
        self.checks_actions = vec_env.checks_actions
        self.autotuned = vec_env.autotuned
        for buffer in ("buf_rews", "buf_dones", "buf_truncations", "buf_infos"):
            delattr(self, buffer)  # they are found on the vector environment

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "vec_env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.vec_env, name)

    @property
    def buf_obs(self) -> Any:
        """The last observations, in an array of their own that may be written to."""
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
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
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
    def load_state(
        self, state: EnvStates, env_ids: Sequence[int] | None = None
    ) -> tuple[Any, StepInfos]:
        return self.vec_env.load_state(state, env_ids)

    @override
    def clone_state(
        self,
        src_ids: int | Sequence[int],
        dst_ids: int | Sequence[int],
        *,
        fork_rng: bool = False,
    ) -> tuple[Any, StepInfos]:
        return self.vec_env.clone_state(src_ids, dst_ids, fork_rng=fork_rng)

    def close_extras(self) -> None:
        """Closes the vector environment."""
        self.vec_env.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vec_env!r})"


def checked_vec_env(name: str, vec_env: VecEnv) -> VecEnv:
    """The vector environment, if it is one.

    Args:
        name: of what it was given to.
        vec_env: the vector environment.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(vec_env, VecEnv):
        raise TypeError(
            f"{name}: expected a VecEnv, got {type(vec_env).__name__}; "
            "xuance_envs.compat.from_gymnasium makes one of a Gymnasium vector environment"
        )
    return vec_env
