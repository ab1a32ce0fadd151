"""What has to be taken note of from an environment's beginning, so that it can be saved later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["record"]


def record(env: Any) -> None:
    """Has an environment take note of it, if it is of a kind that needs that.

    Nothing happens unless one of two libraries has been loaded: ale-py, whose emulator does not
    tell which action it may repeat, and Box2D, whose worlds do not tell anything.
    """
    recorders: list[tuple[str, Callable[[Any], Any]]] = []
    if "ale_py" in sys.modules:
        from xuance_envs.state import ale

        recorders.append((ale.ALE_ENV_CLASS, ale.ALEActionRecorder.attach))
    if "Box2D" in sys.modules:
        from xuance_envs.state import box2d

        recorders.append((box2d.REPLAYED_CLASS, box2d.Box2DRecorder))
    if recorders:
        innermost = getattr(env, "unwrapped", env)
        for kind in type(innermost).__mro__:
            for name, begin in recorders:
                if f"{kind.__module__}.{kind.__qualname__}" == name:
                    begin(innermost)
