"""Environments with many agents, vectorized.

Everything an environment's agents have travels in one record of bytes, which is all that the vector
environment below knows of them: so they are stepped by every backend, and at its speed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xuance_envs.multi_agent.making import make_multi_agent_vec as make_multi_agent_vec
    from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv as MultiAgentVecEnv
    from xuance_envs.multi_agent.parallel_view import as_parallel_env as as_parallel_env
    from xuance_envs.multi_agent.raw_env import MPE_Env as MPE_Env
    from xuance_envs.multi_agent.raw_env import MultiAgentEnv as MultiAgentEnv
    from xuance_envs.multi_agent.raw_env import RawMultiAgentEnv as RawMultiAgentEnv
    from xuance_envs.multi_agent.raw_env import (
        XuanCeMultiAgentEnvWrapper as XuanCeMultiAgentEnvWrapper,
    )
    from xuance_envs.multi_agent.rows import per_agent_rows as per_agent_rows
    from xuance_envs.multi_agent.step import MultiAgentStart as MultiAgentStart
    from xuance_envs.multi_agent.step import MultiAgentStep as MultiAgentStep
    from xuance_envs.multi_agent.xuance import DummyVecEnv_Football as DummyVecEnv_Football
    from xuance_envs.multi_agent.xuance import DummyVecEnv_StarCraft2 as DummyVecEnv_StarCraft2
    from xuance_envs.multi_agent.xuance import DummyVecMultiAgentEnv as DummyVecMultiAgentEnv
    from xuance_envs.multi_agent.xuance import SubprocVecEnv_Football as SubprocVecEnv_Football
    from xuance_envs.multi_agent.xuance import SubprocVecEnv_StarCraft2 as SubprocVecEnv_StarCraft2
    from xuance_envs.multi_agent.xuance import SubprocVecMultiAgentEnv as SubprocVecMultiAgentEnv

# Loaded when they are used: workers import a module of this package, and need few of these.
_HOMES = {
    "make_multi_agent_vec": "making",
    "MultiAgentVecEnv": "multi_agent_vec_env",
    "as_parallel_env": "parallel_view",
    "MPE_Env": "raw_env",
    "MultiAgentEnv": "raw_env",
    "RawMultiAgentEnv": "raw_env",
    "XuanCeMultiAgentEnvWrapper": "raw_env",
    "per_agent_rows": "rows",
    "MultiAgentStart": "step",
    "MultiAgentStep": "step",
    "DummyVecEnv_Football": "xuance",
    "DummyVecEnv_StarCraft2": "xuance",
    "DummyVecMultiAgentEnv": "xuance",
    "SubprocVecEnv_Football": "xuance",
    "SubprocVecEnv_StarCraft2": "xuance",
    "SubprocVecMultiAgentEnv": "xuance",
}

__all__ = [
    "DummyVecEnv_Football",
    "DummyVecEnv_StarCraft2",
    "DummyVecMultiAgentEnv",
    "MPE_Env",
    "MultiAgentEnv",
    "MultiAgentStart",
    "MultiAgentStep",
    "MultiAgentVecEnv",
    "RawMultiAgentEnv",
    "SubprocVecEnv_Football",
    "SubprocVecEnv_StarCraft2",
    "SubprocVecMultiAgentEnv",
    "XuanCeMultiAgentEnvWrapper",
    "as_parallel_env",
    "make_multi_agent_vec",
    "per_agent_rows",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
