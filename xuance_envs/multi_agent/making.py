"""Many environments with many agents by their name."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from xuance_envs.multi_agent.adapters import SeededEnv, agents_env
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.team import Groups
from xuance_envs.vector_envs.arguments import checked_seed

__all__ = ["make_agents_env", "make_multi_agent_vec"]


def make_multi_agent_vec(
    env: str | Callable[..., Any],
    num_envs: int,
    *,
    backend: str = "auto",
    seed: int | None = None,
    groups: Groups | None = None,
    state: bool | str = "auto",
    action_mask: bool | str = "auto",
    vector_kwargs: Mapping[str, Any] | None = None,
    **env_kwargs: Any,
) -> MultiAgentVecEnv:
    """Makes many environments with many agents.

    Args:
        env: a function that makes one, or the module of one, as ``"package:name"``: of
            ``"mpe2:simple_spread_v3"`` it is ``mpe2.simple_spread_v3.parallel_env``. A module
            without ``parallel_env`` has ``env``, which makes a turn-based one.
        num_envs: how many.
        backend: as for :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv`.
        seed: the first reset of environment i equals ``reset(seed=seed + i)``.
        groups: as for the class.
        state: as for the class.
        action_mask: as for the class.
        vector_kwargs: further arguments for the class; not with ``backend="auto"``.
        **env_kwargs: for the function.

    Raises:
        ValueError: the name is none, ``num_envs`` is below 1, or an argument is out of its range.
        ImportError: there is no such module.
        EnvError: an environment could not be made.

    Example:
        >>> from xuance_envs import make_multi_agent_vec
        >>> with make_multi_agent_vec("mpe2:simple_tag_v3", 4, seed=0) as envs:
        ...     step = envs.reset()
        >>> envs.groups
        {'adversary': ('adversary_0', 'adversary_1', 'adversary_2'), 'agent': ('agent_0',)}
        >>> step.obs["adversary"].shape, step.obs["agent"].shape
        ((4, 3, 16), (4, 1, 14))
    """
    num_envs = operator.index(num_envs)
    if num_envs < 1:
        raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
    make_env = partial(_env_constructor(env) if isinstance(env, str) else env, **env_kwargs)
    seeds: list[int | None] = [None] * num_envs
    if seed is not None:
        first = checked_seed("seed", seed)
        seeds = [first + i for i in range(num_envs)]
    return MultiAgentVecEnv(
        [make_env if each is None else partial(_make_seeded, make_env, each) for each in seeds],
        backend=backend,
        groups=groups,
        state=state,
        action_mask=action_mask,
        **dict(vector_kwargs or {}),
    )


def make_agents_env(
    name: str,
    *,
    env_seed: int | None = None,
    groups: Groups | None = None,
    state: bool | str = "auto",
    action_mask: bool | str = "auto",
    **env_kwargs: Any,
) -> AgentsEnv:
    """Makes one environment with many agents that steps records: what a server's catalogue takes.

    Args:
        name: the module of one, as :func:`make_multi_agent_vec` takes it.
        env_seed: the first reset equals ``reset(seed=env_seed)``.
        groups: as for the class.
        state: as for the class.
        action_mask: as for the class.
        **env_kwargs: for the module's function.

    Raises:
        ValueError: the name is none.
        ImportError: there is no such module.
        BadValueError: it is no such environment, or cannot be carried.
    """
    make_env: Callable[[], Any] = partial(_env_constructor(name), **env_kwargs)
    if env_seed is not None:
        make_env = partial(_make_seeded, make_env, env_seed)
    return agents_env(make_env, groups, state, action_mask)


def _env_constructor(name: str) -> Callable[..., Any]:
    package, colon, world = name.partition(":")
    if not (package and colon and world):
        registered = f": partial(pettingzoo.make, 'parallel', {name!r})" if "/" in name else ""
        raise ValueError(
            "env: expected a function, or the module of an environment as 'package:name', such as "
            f"'mpe2:simple_spread_v3', got {name!r}; ids of PettingZoo's registry are for a "
            f"function{registered}"
        )
    module = importlib.import_module(f"{package}.{world}")
    for function in ("parallel_env", "env"):
        if callable(getattr(module, function, None)):
            return partial(_construct, module.__name__, function)
    raise ValueError(f"env: expected a module with parallel_env or env, got {module.__name__}")


def _construct(module: str, function: str, **kwargs: Any) -> Any:
    return getattr(importlib.import_module(module), function)(**kwargs)


def _make_seeded(make_env: Callable[[], Any], seed: int) -> SeededEnv:
    return SeededEnv(make_env(), seed)
