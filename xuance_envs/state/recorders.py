"""Recorders that must run from an environment's creation so that it can be saved later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from xuance_envs.state.faults import class_name


def record(env: Any) -> None:
    """Attach a recorder to an environment of ale-py or Box2D; copy MuJoCo's models."""
    if sys.modules.keys().isdisjoint(("ale_py", "Box2D", "mujoco")):
        return
    from xuance_envs.state import ale, box2d, mujoco  # importing them takes milliseconds

    recorders: dict[str, Callable[[Any], Any]] = {
        ale.ALE_ENV_CLASS: ale.ALEActionRecorder.attach,
        box2d.REPLAYED_CLASS: box2d.Box2DRecorder,
    }
    innermost = getattr(env, "unwrapped", env)
    mujoco.keep_original_models(innermost)
    for kind in type(innermost).__mro__:
        if (begin := recorders.get(class_name(kind))) is not None:
            begin(innermost)
