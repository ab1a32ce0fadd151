"""Wrappers around an environment, from the outermost to the environment itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gymnasium.spaces import Box

_SCALARIZING = {("mo_gymnasium.wrappers.wrappers", "LinearReward")}
"""Other libraries' wrappers that scalarize rewards but do not set ``reward_space`` to None."""


def env_layers(env: Any) -> Iterator[Any]:
    seen = set()
    while id(env) not in seen:
        seen.add(id(env))
        yield env
        # PettingZoo's conversions of turn-based environments have ``aec_env``.
        inner = [getattr(env, name, None) for name in ("env", "aec_env")]
        env = next(filter(_is_env, inner), env)


def _is_env(value: Any) -> bool:
    return all([callable(getattr(value, name, None)) for name in ("reset", "step")])


def has_itself(layer: Any, name: str) -> bool:
    """Return whether a layer has an attribute of its own, ignoring ``__getattr__``."""
    # Not `vars(layer)`: on Python 3.11 it slows down every later attribute access.
    if any(name in vars(kind) for kind in type(layer).__mro__):
        return True
    try:
        object.__getattribute__(layer, name)
    except AttributeError:
        return False
    return True


def reward_space_of(env: Any) -> Box | None:
    """Return the space ``(k,)`` that the outermost layer declares for vector rewards, or None."""
    for layer in env_layers(env):
        if any((kind.__module__, kind.__name__) in _SCALARIZING for kind in type(layer).__mro__):
            return None
        if has_itself(layer, "reward_space"):  # None declares numbers
            space = layer.reward_space
            break
    else:
        space = getattr(layer, "reward_space", None)
    return space if isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] else None
