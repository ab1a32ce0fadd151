"""One environment, as the engine sees it: whatever can be reset and stepped, wrapped or not."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from xuance_envs.engine.space_layout import BadValueError, describe

__all__ = ["EnvDescription", "checked_env", "innermost_of", "owner_of", "render"]


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
        limit = getattr(env, "max_episode_steps", None)
        if limit is None:
            limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        return cls(
            env.observation_space,
            env.action_space,
            {k: v for k, v in (getattr(env, "metadata", None) or {}).items() if _can_travel(v)},
            getattr(env, "render_mode", None),
            limit,
        )

    def check_spaces(self, other: Any, index: int, own_index: int) -> None:
        """Raises a RuntimeError if another environment's spaces are not the same."""
        for name in ("observation_space", "action_space"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                raise RuntimeError(
                    f"environment {index} has another {name} than environment {own_index}: "
                    f"expected {mine}, got {its}"
                )


def checked_env(env: Any) -> Any:
    """The object, if it can be stepped as an environment."""
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise BadValueError(f"expected an environment, got {describe(env)} without {name}()")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, Space):
            raise BadValueError(
                f"expected an environment whose {name} is a gymnasium.Space, got "
                f"{describe(space)}; Gym_Env(..., library='gym') takes those of the older gym"
            )
    return env


def _can_travel(value: Any) -> bool:
    """Whether a value can be sent between processes: the same in every backend."""
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _chain(env: Any) -> Iterator[Any]:
    """The environment and those it wraps, outermost first."""
    seen = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = getattr(env, "env", None)


def owner_of(env: Any, name: str) -> Any:
    """The outermost of an environment and those it wraps that has the attribute, else None."""
    return next((layer for layer in _chain(env) if hasattr(layer, name)), None)


def innermost_of(env: Any) -> Any:
    """The environment that wraps no other."""
    *_, innermost = _chain(env)
    return innermost


def render(env: Any, mode: str | None) -> Any:
    """Renders an environment; a mode is passed on only if there is one and it is taken."""
    if mode is None:
        return env.render()
    parameters = inspect.signature(env.render).parameters.values()
    # XuanCe's own environments take it as one of any arguments.
    if any(p.name == "mode" or p.kind is p.VAR_POSITIONAL for p in parameters):
        return env.render(mode)
    return env.render()
