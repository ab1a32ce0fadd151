"""Recorders that must run from an environment's creation so that it can be saved later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def record(env: Any) -> None:
    """Attach a recorder to an environment of ale-py or Box2D; copy MuJoCo's models."""
    recorders: list[tuple[str, Callable[[Any], Any]]] = []
    if "ale_py" in sys.modules:
        from xuance_envs.state import ale

        recorders.append((ale.ALE_ENV_CLASS, ale.ALEActionRecorder.attach))
    if "Box2D" in sys.modules:
        from xuance_envs.state import box2d

        recorders.append((box2d.REPLAYED_CLASS, box2d.Box2DRecorder))
    if "mujoco" in sys.modules:
        from xuance_envs.state import mujoco

        mujoco.keep_original_models(getattr(env, "unwrapped", env))
    if recorders:
        innermost = getattr(env, "unwrapped", env)
        for kind in type(innermost).__mro__:
            for name, begin in recorders:
                if f"{kind.__module__}.{kind.__qualname__}" == name:
                    begin(innermost)
