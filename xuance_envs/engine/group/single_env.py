"""One environment, as the engine sees it: whatever can be reset and stepped, wrapped or not."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from gymnasium import Space

from xuance_envs.engine.data.space_layout import BadValueError, describe, fit

__all__ = [
    "EnvDescription",
    "ResetOnStep",
    "check_distinct",
    "check_env_api",
    "close",
    "common_description",
    "find_layer",
    "find_setattr_layer",
    "get_attribute",
    "render",
    "to_scalar",
]


@dataclass(frozen=True)
class EnvDescription:
    """What a vector environment says about its environments, as one of them has it."""

    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    max_episode_steps: int | None

    @classmethod
    def of(cls, env: Any) -> EnvDescription:
        """Describes an environment."""
        metadata = getattr(find_layer(env, "metadata"), "metadata", None) or {}
        return cls(
            env.observation_space,
            env.action_space,
            {k: v for k, v in metadata.items() if _is_picklable(v)},
            getattr(find_layer(env, "render_mode"), "render_mode", None),
            _step_limit(env),
        )

    def differing_space(self, other: Any) -> str | None:
        """The name of the first space that another environment has otherwise, if there is one."""
        for name in ("observation_space", "action_space"):
            if getattr(self, name) != getattr(other, name):
                return name
        return None


def common_description(described: Sequence[tuple[int, EnvDescription]]) -> EnvDescription:
    """The description of environment 0, if the others' spaces are the same."""
    (_, first), *others = described
    for index, other in others:
        if (name := first.differing_space(other)) is not None:
            raise RuntimeError(
                f"environment {index} has another {name} than environment 0: "
                f"expected {getattr(first, name)}, got {getattr(other, name)}"
            )
    return first


class ResetOnStep:
    """What is stepped in place of an environment, for one step that resets it."""

    def __init__(self, reset: Callable[[], tuple[Any, Any]], arguments: Mapping[str, Any]) -> None:
        self._reset = reset
        self.arguments = arguments

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Resets the environment, and returns what a step does."""
        observation, info = self._reset()
        return observation, 0.0, False, False, info


def check_env_api(env: Any) -> Any:
    """The object, if it can be stepped as an environment."""
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise BadValueError(f"expected an environment, got {describe(env)} without {name}()")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, Space):
            raise BadValueError(
                f"expected an environment whose {name} is a gymnasium.Space, got "
                f"{describe(space)}; Gym_Env(..., library='gym') takes those of the older gym, "
                "MultiAgentVecEnv those with many agents"
            )
    return env


def _step_limit(env: Any) -> Any:
    """The outermost limit of an episode's steps that an environment or one that it wraps states."""
    layers = list(_layers(env))
    for layer, inner in zip_longest(layers, layers[1:]):
        for name in ("max_episode_steps", "_max_episode_steps"):  # the latter is a TimeLimit's
            # A wrapper may give the attributes of what it wraps for its own.
            if inner is None or _has_itself(layer, name):
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
    """Raises unless environments are objects of their own."""
    seen: dict[int, int] = {}
    for i, env in enumerate(envs):
        if (twin := seen.setdefault(id(env), i)) != i:
            raise ValueError(
                f"env_fns[{first + twin}] and env_fns[{first + i}] returned the same object: each "
                "function has to make an environment of its own"
            )


def to_scalar(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """One number that an environment returned, as Python has it."""
    number = np.asarray(value)
    try:
        return fit(number.reshape(()) if number.size == 1 else number, dtype, ()).item()
    except BadValueError as error:
        raise BadValueError(f"its {name}: {error}") from None


def _is_picklable(value: Any) -> bool:
    """Whether a value can be sent between processes: the same in every backend."""
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _layers(env: Any) -> Iterator[Any]:
    """The environment and those it wraps, outermost first."""
    seen = set()
    while id(env) not in seen:
        seen.add(id(env))
        yield env
        inner = getattr(env, "env", None)  # which is whatever the environment calls so
        if not (callable(getattr(inner, "reset", None)) and callable(getattr(inner, "step", None))):
            return
        env = inner


def _has_itself(layer: Any, name: str) -> bool:
    """Whether a layer has an attribute itself, which its own getting may still deny."""
    # Not through `vars`, which on Python 3.11 would slow down every later use of the layer.
    if any(name in vars(kind) for kind in type(layer).__mro__):
        return True
    try:
        object.__getattribute__(layer, name)
    except AttributeError:
        return False
    return True


def find_layer(env: Any, name: str) -> Any:
    """The outermost of an environment and those it wraps that has the attribute, else None."""
    return next(
        (layer for layer in _layers(env) if _has_itself(layer, name) or hasattr(layer, name)), None
    )


def find_setattr_layer(env: Any, name: str) -> Any:
    """The layer to set an attribute on: the one that has it itself, else the innermost one.

    A wrapper that passes on what it has not is not the one.
    """
    *layers, innermost = _layers(env)
    return next((layer for layer in layers if _has_itself(layer, name)), innermost)


def get_attribute(layer: Any, name: str) -> Any:
    """The attribute of a layer."""
    try:
        return getattr(layer, name)
    except AttributeError:
        found = inspect.getattr_static(type(layer), name, None)
        if hasattr(found, "__get__"):
            found.__get__(layer, type(layer))
        raise


def close(env: Any) -> None:
    """Closes an environment, if it has a method for that."""
    end = getattr(find_layer(env, "close"), "close", None)
    if callable(end):
        end()


def render(env: Any, mode: str | None) -> Any:
    """Renders an environment; a mode goes only to one that takes it.

    It goes by its place, whatever the parameter's name: XuanCe's environments have several. One
    that insists on a mode is given the one it was made with.
    """
    parameters = inspect.signature(env.render).parameters.values()
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    if takes and takes[0].default is inspect.Parameter.empty and mode is None:
        return env.render(getattr(env, "render_mode", None))
    if mode is not None and (takes or any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        return env.render(mode)
    return env.render()
