"""Vectorized multi-agent environments by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from xuance_envs._deprecated import accept_old_names
from xuance_envs.extras import naming_extra
from xuance_envs.multi_agent.adapters import SeededEnv, agents_env
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.team import Groups
from xuance_envs.vector_envs.arguments import checked_count, checked_seed
from xuance_envs.vector_envs.options import (
    AutoBool,
    BackendName,
    BackendOptions,
    naming_misplaced_options,
)

__all__ = ["make_agents_env", "make_multi_agent_vec"]


@accept_old_names
def make_multi_agent_vec(
    env: str | Callable[..., Any],
    num_envs: int,
    *,
    backend: BackendName = "auto",
    seed: int | None = None,
    allow_threads: bool = False,
    groups: Groups | None = None,
    state: AutoBool = "auto",
    action_masks: AutoBool = "auto",
    vector_kwargs: BackendOptions | None = None,
    **env_kwargs: Any,
) -> MultiAgentVecEnv:
    """Create a vectorized multi-agent environment.

    Args:
        env: function that creates one PettingZoo or XuanCe environment, or a module as
            ``"package:name"``. ``"mpe2:simple_spread_v3"`` calls
            ``mpe2.simple_spread_v3.parallel_env``. A module without ``parallel_env`` must have a
            function ``env`` that creates a turn-based environment.
        num_envs: number of environments.
        backend: as for :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv`.
        seed: seed of the first reset; environment i gets ``seed + i``.
        allow_threads: as for :func:`~xuance_envs.making.make_vec`.
        groups: as for ``MultiAgentVecEnv``.
        state: as for ``MultiAgentVecEnv``.
        action_masks: as for ``MultiAgentVecEnv``.
        vector_kwargs: further arguments for ``MultiAgentVecEnv``.
        **env_kwargs: arguments for the environment function.

    Raises:
        ValueError: the name, ``num_envs``, ``seed`` or ``backend`` is invalid, or no backend has
            all the options.
        TypeError: an option is unknown, or an option of the vectorized environment is among
            ``env_kwargs``.
        ImportError: there is no such module.
        EnvError: an environment could not be created, or does not fit ``groups``, ``state`` or
            ``action_masks``.
        RuntimeError: the environments' agents or spaces differ.

    Example:
        >>> from xuance_envs import make_multi_agent_vec
        >>> with make_multi_agent_vec("mpe2:simple_tag_v3", 4, seed=0) as envs:
        ...     step = envs.reset()
        >>> envs.groups
        {'adversary': ('adversary_0', 'adversary_1', 'adversary_2'), 'agent': ('agent_0',)}
        >>> step.obs["adversary"].shape, step.obs["agent"].shape
        ((4, 3, 16), (4, 1, 14))
    """
    num_envs = checked_count("num_envs", num_envs)
    make_env = partial(_env_constructor(env) if isinstance(env, str) else env, **env_kwargs)
    env_fns: list[Callable[..., Any]] = [make_env] * num_envs
    if seed is not None:
        first = checked_seed("seed", seed)
        env_fns = [partial(_make_seeded, make_env, first + i) for i in range(num_envs)]
    with naming_misplaced_options(env_kwargs):
        return MultiAgentVecEnv(
            env_fns,
            backend=backend,
            allow_threads=allow_threads,
            groups=groups,
            state=state,
            action_masks=action_masks,
            **(vector_kwargs or {}),
        )


@accept_old_names
def make_agents_env(
    name: str,
    *,
    env_seed: int | None = None,
    groups: Groups | None = None,
    state: AutoBool = "auto",
    action_masks: AutoBool = "auto",
    **env_kwargs: Any,
) -> AgentsEnv:
    """Create one environment for a server, with the arguments of :func:`make_multi_agent_vec`."""
    make_env: Callable[[], Any] = partial(_env_constructor(name), **env_kwargs)
    if env_seed is not None:
        make_env = partial(_make_seeded, make_env, env_seed)
    return agents_env(make_env, groups, state, action_masks)


def _env_constructor(name: str) -> Callable[..., Any]:
    package, colon, module_name = name.partition(":")
    if not (package and colon and module_name):
        registered = f": partial(pettingzoo.make, 'parallel', {name!r})" if "/" in name else ""
        raise ValueError(
            "env: expected a function, or the module of an environment as 'package:name', such as "
            f"'mpe2:simple_spread_v3', got {name!r}; for an id of PettingZoo's registry, pass a "
            f"function{registered}"
        )
    with naming_extra(name):
        module = importlib.import_module(f"{package}.{module_name}")
    for function in ("parallel_env", "env"):
        if callable(getattr(module, function, None)):
            return partial(_construct, module.__name__, function)
    raise ValueError(
        f"env: expected a module with parallel_env or env, got {module.__name__} with neither"
    )


def _construct(module: str, function: str, **kwargs: Any) -> Any:
    return getattr(importlib.import_module(module), function)(**kwargs)


def _make_seeded(make_env: Callable[[], Any], seed: int) -> SeededEnv:
    return SeededEnv(make_env(), seed)
