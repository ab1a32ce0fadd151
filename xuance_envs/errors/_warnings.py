"""Stack levels of warnings."""

from __future__ import annotations

import inspect

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
    while (
        frame is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] in _INTERNAL_PACKAGES
    ):
        frame = frame.f_back
        level += 1
    return level
