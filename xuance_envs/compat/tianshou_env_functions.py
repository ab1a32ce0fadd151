"""What Tianshou does with single environments, to be called where the environments live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium import Space, spaces

__all__ = [
    "ObjectEnv",
    "ObjectSpace",
    "TianshouEnvFn",
    "get_env_attr",
    "has_object_space",
    "render",
    "reset_with_arguments",
    "seed",
    "set_env_attr",
]

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ObjectSpace(Space[Any]):
    """Any object."""

    def contains(self, x: Any) -> bool:
        """Everything is."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSpace)

    __hash__ = Space.__hash__


class ObjectEnv:
    """An environment whose observations and rewards are whatever it returns.

    Its observations here are pairs of an observation and a reward.
    """

    observation_space = ObjectSpace()

    def __init__(self, env: Any) -> None:
        self.env = env
        space = getattr(env, "action_space", None)
        self.action_space = space if isinstance(space, Space) else ObjectSpace()

    def reset(self, **kwargs: Any) -> tuple[Any, Any]:
        """Resets the environment."""
        observation, info = self.env.reset(**kwargs)
        return (observation, None), info

    def step(self, action: Any) -> tuple[Any, float, Any, Any, Any]:
        """Steps the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return (observation, reward), 0.0, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


class TianshouEnvFn:
    """A function that makes an environment, for one that the groups can step."""

    def __init__(self, function: Callable[[], Any], as_objects: bool) -> None:
        self.function = function
        self.as_objects = as_objects

    def __call__(self) -> Any:
        """Makes the environment."""
        env = self.function()
        plain = (
            isinstance(env, gymnasium.Env)
            and isinstance(getattr(env, "observation_space", None), _ARRAYS)
            and isinstance(getattr(env, "action_space", None), Space)
        )
        return env if plain and not self.as_objects else ObjectEnv(env)


def has_object_space(space: Space[Any]) -> bool:
    """Whether an observation space is that of an :class:`ObjectEnv`."""
    return isinstance(space, ObjectSpace)


def _has_own_attr(env: Any) -> Any:
    return env.env if isinstance(env, ObjectEnv) else env


def get_env_attr(env: Any, name: str, *default: Any) -> Any:
    """An attribute of the outermost wrapper that has it."""
    outermost = env = _has_own_attr(env)
    while isinstance(env, gymnasium.Wrapper):
        if hasattr(env, name):
            return getattr(env, name)
        env = env.env
    if not hasattr(env, name) and not default:
        raise AttributeError(f"{outermost} has no attribute {name!r}")
    return getattr(env, name, *default)


def set_env_attr(env: Any, name: str, value: Any) -> None:
    """Sets an attribute of the innermost environment, as Tianshou does."""
    env = _has_own_attr(env)
    setattr(getattr(env, "unwrapped", env), name, value)


def seed(env: Any, number: int | None) -> tuple[bool, Any]:
    """Seeds an environment's actions, and itself with its own method for that if it has one."""
    env = _has_own_attr(env)
    space = getattr(env, "action_space", None)
    if isinstance(space, Space):
        space.seed(number)
    return (True, env.seed(number)) if hasattr(env, "seed") else (False, [number])


def reset_with_arguments(env: Any, arguments: Mapping[str, Any]) -> Any:
    """Resets an environment with arguments of its own; what it returns."""
    return _has_own_attr(env).reset(**arguments)


def render(env: Any, arguments: Mapping[str, Any]) -> Any:
    """Renders an environment, None if it cannot."""
    env = _has_own_attr(env)
    return env.render(**arguments) if hasattr(env, "render") else None
