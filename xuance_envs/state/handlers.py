"""Objects that define their own state, and handlers for classes that do not.

An environment, a wrapper or an object in their attributes may define two methods:
``__env_state__()`` returns its state, and ``__set_env_state__(value)`` restores it.
``__env_state__ = None`` declares an object stateless. For classes that you cannot change, use
:func:`register_state`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xuance_envs._deprecated import deprecated_aliases
from xuance_envs.state.faults import class_name

__all__ = ["NATIVE", "Handler", "handler_of", "merge_registered", "register_state", "registered"]

__getattr__ = deprecated_aliases(__name__, take_registered="merge_registered")

Save = Callable[[Any], Any]
Load = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Handler:
    """Functions that save and restore the state of one kind of object.

    Each function takes the object first. Some take its owner last: the layer that holds the object
    as an attribute, or the object itself if it is a layer.

    Args:
        save: returns the state; takes the owner.
        load: restores a state in another object; takes the state and the owner.
        check: raises an error unless a state can be loaded; changes nothing. Returns a warning, or
            None.
        describe: returns the name of the object's library, and facts that must be equal in the
            saved and the target object; takes the owner.
        fork: gives the object a new random stream, derived from its own.
        replays: True if a state is restored by repeating the actions that led to it.
    """

    save: Callable[[Any, Any], Any]
    load: Callable[[Any, Any, Any], None]
    check: Callable[[Any, Any], str | None] | None = None
    describe: Callable[[Any, Any], tuple[str, dict[str, Any]]] | None = None
    fork: Callable[[Any, Any], None] | None = None
    replays: bool = False

    @classmethod
    def of(cls, save: Save, load: Load) -> Handler:
        """Wrap functions that do not take the owner."""
        return cls(lambda obj, _: save(obj), lambda obj, value, _: load(obj, value))


_STATELESS_HANDLER = Handler.of(lambda obj: None, lambda obj, value: None)
_PROTOCOL_HANDLER = Handler.of(
    lambda obj: obj.__env_state__(), lambda obj, value: obj.__set_env_state__(value)
)

NATIVE: dict[str, Handler] = {}
"""Handlers for classes of native libraries, by qualified class name."""

_registered: dict[type, tuple[Save, Load]] = {}


def register_state(cls: type, save: Save, load: Load) -> None:
    """Register functions that save and restore the state of a class.

    Use it for environments, wrappers and objects in their attributes whose class cannot define
    ``__env_state__`` and ``__set_env_state__``. The functions also apply to subclasses. All worker
    processes use them from then on. A second call replaces them.

    Args:
        cls: the class.
        save: function that returns an object's state as picklable data. Nothing else of the object
            is saved.
        load: function that restores this state; takes an object that was created in the same way,
            and the state.

    Example:
        >>> import numpy as np
        >>> from xuance_envs import register_state
        >>> class Pump:  # its handle cannot be pickled
        ...     def __init__(self):
        ...         self.handle, self.pressure = lambda: None, 1.0
        >>> register_state(
        ...     Pump,
        ...     save=lambda pump: pump.pressure,
        ...     load=lambda pump, pressure: setattr(pump, "pressure", pressure),
        ... )
    """
    if not isinstance(cls, type):
        raise TypeError(f"cls: expected a class, got {cls!r}")
    _registered[cls] = save, load
    _find.cache_clear()


def registered() -> dict[type, tuple[Save, Load]]:
    """Return all registered save and load functions, by class."""
    return _registered


def merge_registered(others: dict[type, tuple[Save, Load]]) -> None:
    """Add the save and load functions that another process registered, by class."""
    _registered.update(others)
    _find.cache_clear()


def handler_of(kind: Any) -> Handler | None:
    """Return the handler of a class, or None."""
    return _find(kind)


@functools.cache
def _find(kind: Any) -> Handler | None:
    for each in kind.__mro__:
        if each in _registered:
            return Handler.of(*_registered[each])
        if "__env_state__" in each.__dict__:
            is_stateless = each.__dict__["__env_state__"] is None
            return _STATELESS_HANDLER if is_stateless else _PROTOCOL_HANDLER
        if (known := NATIVE.get(class_name(each))) is not None:
            return known
    return None
