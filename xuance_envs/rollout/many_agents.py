"""Module of 0.2.0; use :mod:`xuance_envs.rollout.collector` and ``agents``."""

from __future__ import annotations

from xuance_envs._deprecated import warn_renamed
from xuance_envs.rollout import agents as _agents
from xuance_envs.rollout import collector as _collector

_MODULES = {"MultiAgent": _agents, "MultiAgentRolloutCollector": _collector}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    warn_renamed(f"{__name__}.{name}", f"{module.__name__}.{name}")
    return getattr(module, name)
