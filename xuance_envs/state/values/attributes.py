"""Attributes of objects: which of them their own pickling methods leave out or change."""

from __future__ import annotations

import datetime
import functools
import logging
import sys
import types
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from xuance_envs.state.layers import slot_items, slots_of
from xuance_envs.state.values.functions import is_installed

_WITHOUT_ATTRIBUTES = (
    *(datetime.date, datetime.time, datetime.timedelta),
    *(Decimal, Fraction, PurePath, functools.partial),
)
"""Classes whose pickles leave out attributes or slots that a subclass adds."""


@functools.cache
def overrides_pickling(kind: Any) -> bool:
    """Return whether a class outside libraries has pickling methods that may leave data out."""
    names = "__getstate__", "__reduce__", "__reduce_ex__"
    leaves_out = issubclass(kind, _WITHOUT_ATTRIBUTES) and not is_installed(kind.__module__)
    return leaves_out or _changes_attributes(kind) or any(_defines(kind, name) for name in names)


@functools.cache
def _defines(kind: Any, name: str) -> bool:
    methods = [base.__dict__.get(name) for base in kind.__mro__[:-1]]
    functions = [each for each in methods if isinstance(each, types.FunctionType)]
    return any(not is_installed(each.__module__ or "") for each in functions)


def _changes_attributes(kind: Any) -> bool:
    """Return whether a class outside libraries may change attributes while they are unpickled."""
    sets_slots = bool(slots_of(kind)) and _defines(kind, "__setattr__")
    return sets_slots or _defines(kind, "__setstate__")


def hidden_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that its own pickling methods leave out."""
    try:
        _, _, state = [*value.__reduce_ex__(4), None][:3]
    except Exception:  # saving the object raises it again
        return {}
    states = state if type(state) is tuple else (state,)
    saved = {name: item for part in states if type(part) is dict for name, item in part.items()}
    own = attributes_of(value).items()
    return {name: item for name, item in own if saved.get(name, saved) is not item}


def attributes_of(value: Any) -> dict[str, Any]:
    slots = slot_items(value, slots_of(type(value)))
    return {**(getattr(value, "__dict__", None) or {}), **dict(slots)}


def attributes_to_set(value: Any, hidden: dict[str, Any]) -> dict[str, Any]:
    """Return the pickled attributes if they must be set again, as the class may change them.

    ``hidden`` has the attributes that are not pickled.
    """
    kind: Any = type(value)
    if not _changes_attributes(kind):
        return {}
    return {name: item for name, item in attributes_of(value).items() if name not in hidden}


def dict_holders(value: Any) -> int:
    """Return the number of references to an object's ``__dict__``; 0 if it has none."""
    attributes = getattr(value, "__dict__", None)
    return 0 if attributes is None else sys.getrefcount(attributes)


ONE_HOLDER = dict_holders(logging.Filter())
