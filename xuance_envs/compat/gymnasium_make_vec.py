"""``gymnasium.make_vec`` with this package's drop-in classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium import VectorizeMode
from gymnasium.envs.registration import EnvSpec, _find_spec

from xuance_envs.compat.gymnasium_async import AsyncVectorEnv
from xuance_envs.compat.gymnasium_sync import SyncVectorEnv
from xuance_envs.extras import naming_extra

Wrappers = Sequence[Callable[[Any], Any]]  # functions that wrap an environment


def make_gymnasium_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    mode: str | VectorizeMode,
    vector_kwargs: Mapping[str, Any],
    wrappers: Wrappers,
    env_kwargs: Mapping[str, Any],
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    try:
        mode = VectorizeMode(mode)
    except ValueError:
        expected = ", ".join(repr(each.value) for each in VectorizeMode)
        raise ValueError(f"vectorization_mode: expected one of {expected}, got {mode!r}") from None
    if mode is VectorizeMode.VECTOR_ENTRY_POINT:
        return gymnasium.make_vec(
            env_id, num_envs, mode, dict(vector_kwargs), list(wrappers), **env_kwargs
        )
    # Unlike gymnasium.spec, _find_spec imports modules and completes missing versions.
    spec = copy.deepcopy(env_id if isinstance(env_id, EnvSpec) else _find_spec(env_id))
    given = {**spec.kwargs, **env_kwargs}
    spec.kwargs = {}
    make_env = partial(wrapped, partial(_make, copy.copy(spec), **given), wrappers)
    kind = SyncVectorEnv if mode is VectorizeMode.SYNC else AsyncVectorEnv
    vector_env = kind([make_env] * num_envs, **vector_kwargs)
    spec.kwargs = {**given, "num_envs": num_envs, "vectorization_mode": mode.value}
    for name, value in (("vector_kwargs", dict(vector_kwargs)), ("wrappers", list(wrappers))):
        if value:
            spec.kwargs[name] = value
    vector_env.spec = spec
    return vector_env


def _make(spec: EnvSpec, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    with naming_extra(spec.id):
        return gymnasium.make(spec, **kwargs)


def wrapped(make_env: Callable[..., Any], wrappers: Wrappers, **kwargs: Any) -> Any:
    env = make_env(**kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
