"""Functions that the Tianshou adapter runs on an environment, in its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium import Space, spaces

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ObjectSpace(Space[Any]):
    def contains(self, x: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSpace)

    __hash__ = Space.__hash__


class ObjectEnv:
    """Wrapper whose observations are (observation, reward) pairs, with values of any type."""

    observation_space = ObjectSpace()
    reward_space = None  # rewards are part of the observations

    def __init__(self, env: Any) -> None:
        self.env = env
        space = getattr(env, "action_space", None)
        self.action_space = space if isinstance(space, Space) else ObjectSpace()

    def reset(self, **kwargs: Any) -> tuple[Any, Any]:
        observation, info = self.env.reset(**kwargs)
        return (observation, None), info

    def step(self, action: Any) -> tuple[Any, float, Any, Any, Any]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return (observation, reward), 0.0, terminated, truncated, info

    def close(self) -> None:
        self.env.close()


def make_env(function: Callable[[], Any], as_objects: bool) -> Any:
    """Call an environment function; wrap its environment in :class:`ObjectEnv` if necessary."""
    env = function()
    plain = (
        isinstance(env, gymnasium.Env)
        and isinstance(getattr(env, "observation_space", None), _ARRAYS)
        and isinstance(getattr(env, "action_space", None), Space)
    )
    return env if plain and not as_objects else ObjectEnv(env)


def _without_object_env(env: Any) -> Any:
    return env.env if isinstance(env, ObjectEnv) else env


def get_env_attr(env: Any, name: str, *default: Any) -> Any:
    outermost = env = _without_object_env(env)
    while isinstance(env, gymnasium.Wrapper):
        if hasattr(env, name):
            return getattr(env, name)
        env = env.env
    if not hasattr(env, name) and not default:
        raise AttributeError(f"{outermost} has no attribute {name!r}")
    return getattr(env, name, *default)


def set_env_attr(env: Any, name: str, value: Any) -> None:
    """Set an attribute of the unwrapped environment, as Tianshou does."""
    env = _without_object_env(env)
    setattr(getattr(env, "unwrapped", env), name, value)


def seed(env: Any, number: int | None) -> tuple[bool, Any]:
    """Seed an environment and its action space; return ``(has_seed, result)``."""
    env = _without_object_env(env)
    space = getattr(env, "action_space", None)
    if isinstance(space, Space):
        space.seed(number)
    return (True, env.seed(number)) if hasattr(env, "seed") else (False, [number])


def reset_with_arguments(env: Any, arguments: Mapping[str, Any]) -> Any:
    return _without_object_env(env).reset(**arguments)


def render(env: Any, arguments: Mapping[str, Any]) -> Any:
    env = _without_object_env(env)
    return env.render(**arguments) if hasattr(env, "render") else None
