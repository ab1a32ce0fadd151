"""The start methods that workers have by default in tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Atari, SubprocVecEnv_Gym
from xuance_envs.multi_agent.xuance import SubprocVecMultiAgentEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.worker_settings import ProcessSettings

DEFAULT_STARTS = (
    ProcessSettings,
    SubprocVecEnv,
    SubprocVecEnv_Atari,
    SubprocVecEnv_Gym,
    SubprocVecMultiAgentEnv,
)

FORKING = f"""
import sys, warnings
sys.path.append({str(Path(__file__).parent)!r})
from starts import start_by
start_by("fork")
warnings.filterwarnings("ignore", "context='fork'|This process .* is multi-threaded")
"""
"""Code for scripts of ``warm_python``: other workers would import all libraries again."""


def start_by(method: str, replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Start workers by this method where the default is ``"spawn"``."""

    def quick(value: Any) -> Any:
        return method if str(value) == "spawn" else value

    for kind in DEFAULT_STARTS:
        init = inspect.getclosurevars(kind.__init__).nonlocals.get("init", kind.__init__)
        named = (init.__kwdefaults__ or {}).items()
        replace(init, "__kwdefaults__", {name: quick(value) for name, value in named})
        replace(init, "__defaults__", tuple(map(quick, init.__defaults__ or ())))
