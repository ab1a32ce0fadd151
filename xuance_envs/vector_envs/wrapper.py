"""Base class for wrappers of vectorized environments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs._override import override
from xuance_envs.vector_envs.vector_env import StepResult, VecEnv

__all__ = ["VecEnvDelegate", "VecEnvWrapper", "checked_vec_env"]

__getattr__ = deprecated_aliases(__name__, AroundVecEnv="VecEnvDelegate")


_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def _forwarded(
    method: Callable[Concatenate[VecEnv, _Params], _Result],
) -> Callable[Concatenate[Any, _Params], _Result]:
    """Return a method that calls the method of the same name of ``self.vec_env``."""
    name = method.__name__

    @functools.wraps(method, updated=())  # without the mark of an abstract method
    def forward(self: Any, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        result: _Result = getattr(self.vec_env, name)(*args, **kwargs)
        return result

    return forward


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
        """True while a step that ``step_async`` started is pending."""
        return self.vec_env.waiting

    async_reset = _forwarded(VecEnv.async_reset)
    statistics = _forwarded(VecEnv.statistics)
    call = _forwarded(VecEnv.call)  # type: ignore[arg-type]  # kwargs might contain "self"
    get_attr = _forwarded(VecEnv.get_attr)
    set_attr = _forwarded(VecEnv.set_attr)
    save_state = _forwarded(VecEnv.save_state)
    render = _forwarded(VecEnv.render)


class VecEnvWrapper(VecEnvDelegate, VecEnv):
    """Base class for wrappers that forward all operations to another vectorized environment.

    Attributes that the wrapper lacks are looked up on the wrapped vectorized environment. Closing
    either of the two closes both. To transform actions or results, derive from
    :class:`~xuance_envs.transforms.transform.Transform` instead.

    Args:
        vec_env: the vectorized environment to wrap.
        observation_space: observation space of a single environment; None for that of ``vec_env``.
        action_space: action space of a single environment; None for that of ``vec_env``.

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

    buf_obs = property(
        lambda self: self.vec_env.buf_obs,
        lambda self, batch: setattr(self.vec_env, "buf_obs", batch),
        doc="The latest observations, in a writable array.",
    )

    @property
    @override
    def exact_rewards(self) -> NDArray[np.float64]:
        return self.vec_env.exact_rewards

    # Written out, because `_forwarded` would add 0.2 µs to every step.
    @override
    def step_async(self, actions: Any) -> None:
        self.vec_env.step_async(actions)

    @override
    def step_wait(self) -> StepResult:
        return self.vec_env.step_wait()

    reset = _forwarded(VecEnv.reset)
    send = _forwarded(VecEnv.send)
    recv = _forwarded(VecEnv.recv)
    action_masks = _forwarded(VecEnv.action_masks)
    load_state = _forwarded(VecEnv.load_state)
    clone_state = _forwarded(VecEnv.clone_state)

    def close_extras(self) -> None:
        """Close the wrapped vectorized environment."""
        self.vec_env.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vec_env!r})"


def checked_vec_env(name: str, vec_env: VecEnv) -> VecEnv:
    """Return ``vec_env`` if it is a ``VecEnv``, else raise an error that begins with ``name``."""
    if not isinstance(vec_env, VecEnv):
        raise TypeError(
            f"{name}: expected a VecEnv, got {type(vec_env).__name__}; "
            "convert a Gymnasium vector environment with xuance_envs.compat.from_gymnasium"
        )
    return vec_env
