"""Functions that the adapters run on an environment, in its process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec


def call_wrapper_attr(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Look up an attribute with ``get_wrapper_attr``; call it if it is callable, else return it."""
    if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
        raise ValueError(
            f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
        )
    found = env.get_wrapper_attr(name)
    return found(*args, **kwargs) if callable(found) else found


def call_method(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return env.get_wrapper_attr(name)(*args, **kwargs)


def has_wrapper_attr(env: Any, name: str) -> bool:
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        return False
    return True


def set_wrapper_attr(env: Any, name: str, value: Any) -> None:
    """Set an attribute on the wrapper that has it, else on the outermost one, like Gymnasium."""
    env.set_wrapper_attr(name, value)


def is_wrapped(env: Any, wrapper: tuple[str, str]) -> bool:
    """Return whether an environment has a wrapper of the class with this module and name."""
    while isinstance(env, gymnasium.Wrapper):
        if any((kind.__module__, kind.__qualname__) == wrapper for kind in type(env).__mro__):
            return True
        env = env.env
    return False


def make_sb3_env(function: Callable[[], Any]) -> Any:
    """Call an environment function; convert a legacy environment, as Stable-Baselines3 does."""
    env = function()
    if isinstance(env, gymnasium.Env):
        return env
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: env]).envs[0]


def _register_and_make(specs: Mapping[str, EnvSpec], pid: int, function: Callable[[], Any]) -> Any:
    if os.getpid() != pid:
        gymnasium.registry.update(specs)
    return function()


def registering(functions: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return functions that first register this process's ids, if they run in a worker process."""
    specs = {env_id: _with_main_by_value(spec) for env_id, spec in gymnasium.registry.items()}
    return [partial(_register_and_make, specs, os.getpid(), function) for function in functions]


def _with_main_by_value(spec: EnvSpec) -> EnvSpec:
    """Copy a spec; replace an entry point such as ``"__main__:Env"`` by the object."""
    entry = spec.entry_point
    if not isinstance(entry, str) or not entry.startswith("__main__:"):
        return spec
    import __main__

    found: Any = __main__
    for name in entry.partition(":")[2].split("."):
        found = getattr(found, name, None)
    return spec if found is None else replace(spec, entry_point=found)
