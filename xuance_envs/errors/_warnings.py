"""Whose line a warning is about."""

from __future__ import annotations

import inspect

__all__ = ["caller_stacklevel"]

_INTERNAL_PACKAGES = frozenset(
    {"xuance_envs", "gymnasium", "gym", "stable_baselines3", "contextlib"}
)
"""Whose frames may lie between a call and what it leads to: ours, and those of what is around."""


def caller_stacklevel() -> int:
    """The ``stacklevel`` at which a warning of this package is about its caller's own line.

    That is the nearest one of a frame that is neither of this package nor of a library whose
    wrappers may lie around its classes.
    """
    own = inspect.currentframe()
    frame = None if own is None else own.f_back
    level = 1
    while frame is not None and _is_internal(frame.f_globals.get("__name__")):
        frame = frame.f_back
        level += 1
    return level


def _is_internal(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _INTERNAL_PACKAGES
