"""Access to one environment, which may be any object with ``reset``, ``step`` and spaces."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from gymnasium import Space

from xuance_envs.engine.data.space_layout import BadValueError, StepSpaces, describe, fit
from xuance_envs.env_layers import env_layers, has_itself, reward_space_of

_BOOL = np.dtype(np.bool_)


@dataclass(frozen=True)
class EnvDescription:
    """Properties of an environment that its vec env exposes."""

    spaces: StepSpaces
    metadata: dict[str, Any]
    render_mode: str | None
    max_episode_steps: int | None

    @classmethod
    def of(cls, env: Any) -> EnvDescription:
        metadata = getattr(find_layer(env, "metadata"), "metadata", None) or {}
        return cls(
            spaces_of(env),
            {k: v for k, v in metadata.items() if _is_picklable(v)},
            getattr(find_layer(env, "render_mode"), "render_mode", None),
            _step_limit(env),
        )

    @property
    def observation_space(self) -> Space[Any]:
        return self.spaces.observation_space

    @property
    def action_space(self) -> Space[Any]:
        return self.spaces.action_space


def spaces_of(env: Any) -> StepSpaces:
    return StepSpaces(env.observation_space, env.action_space, reward_space_of(env))


def common_description(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """Return environment 0's description; raise if another environment's spaces differ."""
    (_, first), *others = described
    for index, other in others:
        if (name := first.spaces.differing(other.spaces)) is not None:
            raise RuntimeError(
                f"environment {index} has a different {name} than environment 0: "
                f"expected {getattr(first.spaces, name)}, got {getattr(other.spaces, name)}"
            )
    return first


@dataclass(eq=False)
class ResetOnStep:
    """Stand-in for an environment whose next step is a reset."""

    _reset: Callable[[], tuple[Any, Any]]
    arguments: Mapping[str, Any]
    _reward: Any

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        observation, info = self._reset()
        return observation, self._reward, False, False, info


def check_env_api(env: Any) -> Any:
    """Return the object if it has an environment's methods and spaces, else raise."""
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise BadValueError(f"expected an environment, got {describe(env)} without {name}()")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, Space):
            raise BadValueError(
                f"expected an environment whose {name} is a gymnasium.Space, got "
                f"{describe(space)}; use Gym_Env(..., library='gym') for environments of legacy "
                "gym, and MultiAgentVecEnv for multi-agent environments"
            )
    is_asynchronous(env)  # raises if only one of reset and step is
    return env


def is_asynchronous(env: Any) -> bool:
    """Return whether ``reset`` and ``step`` are both ``async def``; raise if only one is."""
    layers = {name: asynchronous_layer(env, name) for name in ("reset", "step")}
    found = [layer for layer in layers.values() if layer is not None]
    if len(found) == 1:
        one, other = sorted(layers, key=lambda name: layers[name] is None)
        raise BadValueError(
            f"expected both reset and step to be asynchronous, or neither: {one} of "
            f"{type(found[0]).__name__} is 'async def', and {other} of {describe(env)} is not"
        )
    return bool(found)


def asynchronous_layer(env: Any, name: str) -> Any:
    """Return the outermost layer whose method of this name is ``async def``, else None."""
    for layer in env_layers(env):
        method = getattr(layer, name, None)
        if inspect.iscoroutinefunction(inspect.unwrap(method) if callable(method) else method):
            return layer
    return None


def _step_limit(env: Any) -> Any:
    """Return the step limit of the outermost layer that has one."""
    layers = list(env_layers(env))
    for layer, inner in zip_longest(layers, layers[1:]):
        for name in ("max_episode_steps", "_max_episode_steps"):  # TimeLimit has the latter
            # A wrapper may forward the attributes of the environment it wraps.
            if inner is None or has_itself(layer, name):
                limit = getattr(layer, name, None)
                if limit is not None:
                    return limit
        limit = _specified_limit(layer)
        if limit is not None and (inner is None or limit != _specified_limit(inner)):
            return limit
    return None


def _specified_limit(layer: Any) -> Any:
    return getattr(getattr(layer, "spec", None), "max_episode_steps", None)


def check_distinct(envs: Sequence[Any], first: int) -> None:
    seen: dict[int, int] = {}
    for i, env in enumerate(envs):
        if (twin := seen.setdefault(id(env), i)) != i:
            raise ValueError(
                f"env_fns[{first + twin}] and env_fns[{first + i}] returned the same object; "
                "each function must create a new environment"
            )


def to_bool(name: str, value: Any) -> bool:
    """Convert a flag that an environment returned."""
    if type(value) is bool:
        return value
    flag = np.asarray(value)
    try:
        return bool(fit(flag.reshape(()) if flag.ndim and flag.size == 1 else value, _BOOL, ()))
    except BadValueError as error:
        raise BadValueError(f"invalid {name}: {error}") from None


def _is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def find_layer(env: Any, name: str) -> Any:
    """Return the outermost layer that has the attribute, else None."""
    return next(
        (layer for layer in env_layers(env) if has_itself(layer, name) or hasattr(layer, name)),
        None,
    )


def find_setattr_layer(env: Any, name: str) -> Any:
    """Return the outermost layer that has the attribute itself, else the innermost layer."""
    *layers, innermost = env_layers(env)
    return next((layer for layer in layers if has_itself(layer, name)), innermost)


def get_attribute(layer: Any, name: str) -> Any:
    try:
        return getattr(layer, name)
    except AttributeError:
        # __getattr__ hides an AttributeError from a property. Calling the property raises it.
        found = inspect.getattr_static(type(layer), name, None)
        if hasattr(found, "__get__"):
            found.__get__(layer, type(layer))
        raise


def close(env: Any) -> Any:
    """Close an environment; return an awaitable if its ``close`` does."""
    end = getattr(find_layer(env, "close"), "close", None)
    return end() if callable(end) else None


def render(env: Any, mode: str | None) -> Any:
    """Render an environment; if ``render`` requires a mode and None is given, use render_mode."""
    parameters = inspect.signature(env.render).parameters.values()
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    if takes and takes[0].default is inspect.Parameter.empty and mode is None:
        return env.render(getattr(env, "render_mode", None))
    if mode is not None and (takes or any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        return env.render(mode)  # by position, because XuanCe's environments name it differently
    return env.render()
