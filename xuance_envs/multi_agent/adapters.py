"""Adapters of asynchronous environments, and the choice of an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.group.single_env import is_asynchronous
from xuance_envs.multi_agent.agents_env import AgentsEnv
from xuance_envs.multi_agent.team import Groups
from xuance_envs.multi_agent.xuance_env import XuanCeAgentsEnv
from xuance_envs.vector_envs.options import AutoBool

_adapter_cache: WeakValueDictionary[Any, AgentsEnv] = WeakValueDictionary()
"""Adapters in this process. Functions that return the same environment get the same adapter."""

_adapter_lock = RLock()


class AsyncAgentsEnv(AgentsEnv):
    """Adapter of a PettingZoo environment whose ``reset`` and ``step`` are ``async def``."""

    @override
    async def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return self._store_reset(await self.env.reset(**self._reset_arguments(given)))

    @override
    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return self._store_step(await self.env.step(self._actions(action)))


class AsyncXuanCeAgentsEnv(AsyncAgentsEnv, XuanCeAgentsEnv):
    """Adapter of a ``RawMultiAgentEnv`` whose ``reset`` and ``step`` are ``async def``."""


class SeededEnv(NamedTuple):
    """Environment and the seed of its first reset. Environment functions can return this."""

    env: Any
    seed: int


def agents_env(
    env_fn: Callable[..., Any],
    groups: Groups | None = None,
    state: AutoBool = "auto",
    action_masks: AutoBool = "auto",
    **keywords: Any,
) -> AgentsEnv:
    """Create a multi-agent environment and wrap it in its adapter."""
    env, first_seed = env_fn(**keywords), None
    if type(env) is SeededEnv:
        env, first_seed = env
    named = None if groups is None else tuple((name, tuple(ids)) for name, ids in groups.items())
    key = id(env), named, state, action_masks
    with _adapter_lock:
        made = _adapter_cache.get(key)
        if made is None or made.source_env is not env:
            made = _adapter_class(env)(env, groups, state, action_masks, first_seed)
            _adapter_cache[key] = made
        return made


def _adapter_class(env: Any) -> type[AgentsEnv]:
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise BadValueError(f"expected an environment, got {describe(env)} without {name}()")
    asynchronous = is_asynchronous(env)
    if isinstance(getattr(env, "observation_space", None), Mapping):
        return AsyncXuanCeAgentsEnv if asynchronous else XuanCeAgentsEnv
    return AsyncAgentsEnv if asynchronous else AgentsEnv
