"""Objects that say for themselves what their state is, or for which somebody else does.

An environment, a wrapper or anything that one of them holds as an attribute may have the methods
``__env_state__()``, which returns what its state is, and ``__set_env_state__(value)``, which puts
it in. ``__env_state__ = None`` says that it has none. For classes of others there is
:func:`register_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["NATIVE", "Handler", "handler_of", "merge_registered", "register_state", "registered"]

Save = Callable[[Any], Any]
Load = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Handler:
    """How the state of one kind of object is taken and put in.

    What each function is given first is the object, and last, where it is said, its owner: the
    layer that has it as an attribute, or itself if it is a layer.

    Args:
        save: returns the state; is given the owner.
        load: puts a state into another object; is given the state and the owner.
        check: raises unless a state can be put in; nothing is changed by that.
        describe: the library it is of, and what has to be the same in both objects; is given the
            owner.
        fork: gives it another random stream, derived from its own.
        replays: whether a state is put in by repeating what led to it.
    """

    save: Callable[[Any, Any], Any]
    load: Callable[[Any, Any, Any], None]
    check: Callable[[Any, Any], None] | None = None
    describe: Callable[[Any, Any], tuple[str, dict[str, Any]]] | None = None
    fork: Callable[[Any, Any], None] | None = None
    replays: bool = False

    @classmethod
    def of(cls, save: Save, load: Load) -> Handler:
        """One of functions that know nothing of owners."""
        return cls(lambda obj, _: save(obj), lambda obj, value, _: load(obj, value))


_STATELESS_HANDLER = Handler.of(lambda obj: None, lambda obj, value: None)
_PROTOCOL_HANDLER = Handler.of(
    lambda obj: obj.__env_state__(), lambda obj, value: obj.__set_env_state__(value)
)

NATIVE: dict[str, Handler] = {}
"""Handlers of objects of native libraries, by the full name of their class."""

_registered: dict[type, tuple[Save, Load]] = {}
_handler_cache: dict[type, Handler | None] = {}


def register_state(cls: type, save: Save, load: Load) -> None:
    """Says how the state of a class is taken, and put into another object of it.

    It is for environments, wrappers and what these hold as attributes, where their class cannot be
    given ``__env_state__`` and ``__set_env_state__``. It holds for classes derived from it, too,
    and from then on also in worker processes.

    Args:
        cls: the class.
        save: is given an object of it; returns its state, as data that can be pickled. What the
            object holds besides is not looked at.
        load: is given an object that was made as the other was, and what ``save`` returned.

    Example:
        >>> import numpy as np
        >>> from xuance_envs import register_state
        >>> class Pump:  # of a library that keeps its state from Python
        ...     def __init__(self):
        ...         self.handle, self.pressure = lambda: None, 1.0
        >>> register_state(
        ...     Pump,
        ...     save=lambda pump: pump.pressure,
        ...     load=lambda pump, pressure: setattr(pump, "pressure", pressure),
        ... )
    """
    _registered[cls] = save, load
    _handler_cache.clear()


def registered() -> dict[type, tuple[Save, Load]]:
    """All that have been registered."""
    return _registered


def merge_registered(others: dict[type, tuple[Save, Load]]) -> None:
    """Registers what was registered in another process."""
    _registered.update(others)
    _handler_cache.clear()


def handler_of(kind: type) -> Handler | None:
    """The handler of a class, if it has one."""
    try:
        return _handler_cache[kind]
    except KeyError:
        return _handler_cache.setdefault(kind, _find(kind))


def _find(kind: type) -> Handler | None:
    for each in kind.__mro__:
        if each in _registered:
            return Handler.of(*_registered[each])
        if "__env_state__" in each.__dict__:
            return (
                _STATELESS_HANDLER if each.__dict__["__env_state__"] is None else _PROTOCOL_HANDLER
            )
        if (known := NATIVE.get(f"{each.__module__}.{each.__qualname__}")) is not None:
            return known
    return None
