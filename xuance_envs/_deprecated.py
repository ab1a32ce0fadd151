"""Aliases of public names, attributes and arguments that were renamed after 0.2.0."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from xuance_envs.errors import caller_stacklevel

F = TypeVar("F", bound=Callable[..., Any])

ARGUMENTS = {"action_mask": "action_masks"}
"""Renamed keyword arguments, old name first."""


def deprecated_aliases(module: str, **names: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__`` that maps old names to new ones, with a warning."""

    def get(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name])
        return getattr(sys.modules[module], names[name])

    return get


def warn_renamed(old: str, new: str) -> None:
    warnings.warn(
        f"{old} is deprecated and will be removed; use {new}",
        DeprecationWarning,
        stacklevel=caller_stacklevel(),
    )


def with_new_names(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the old names of keyword arguments, with a warning."""
    renamed = dict(keywords)
    for old in ARGUMENTS.keys() & renamed.keys():
        new = ARGUMENTS[old]
        if new in renamed:
            raise TypeError(f"{old} is the old name of {new}; expected one of them, got both")
        warn_renamed(f"the argument {old}", new)
        renamed[new] = renamed.pop(old)
    return renamed


def accept_old_names(function: F) -> F:
    """Let a function accept the old names of its keyword arguments."""

    @functools.wraps(function)
    def accepting(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **with_new_names(kwargs))

    return cast("F", accepting)
