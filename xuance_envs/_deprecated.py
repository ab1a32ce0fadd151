"""Aliases of public names that were renamed after 0.2.0."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from xuance_envs.errors import caller_stacklevel


def deprecated_aliases(module: str, **names: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__`` that maps old names to new ones, with a warning."""

    def get(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is deprecated and will be removed; use {names[name]}",
            DeprecationWarning,
            stacklevel=caller_stacklevel(),
        )
        return getattr(sys.modules[module], names[name])

    return get
