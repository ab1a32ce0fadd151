"""Stack levels of warnings."""

from __future__ import annotations

import inspect

__all__ = ["caller_stacklevel"]

_INTERNAL_PACKAGES = frozenset(
    {"xuance_envs", "gymnasium", "gym", "stable_baselines3", "contextlib"}
)
"""Packages whose frames may lie between user code and a warning."""


def caller_stacklevel() -> int:
    """Return the ``stacklevel`` that attributes a warning to the nearest line of user code.

    User code is outside this package and outside libraries that wrap its classes.
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
