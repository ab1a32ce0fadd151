"""Layers of an environment and their attributes.

The layers are the environment itself, the environments that it wraps (in ``env``), and environments
that one of these holds in another attribute.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, starmap
from typing import Any

from xuance_envs.state.handlers import handler_of

WRAPPED_ENV_ATTRIBUTES = ("env", "legacy_env")
"""Attributes in which wrappers hold the wrapped environment."""


class Layer:
    """Attributes of one layer, in its ``__dict__`` and slots."""

    __slots__ = ("attributes", "excluded", "obj", "saves_itself", "slots")

    def __init__(self, obj: Any) -> None:
        self.obj = obj
        self.attributes: dict[str, Any] = getattr(obj, "__dict__", {})
        self.excluded: dict[str, Any] = {}  # attributes that are never saved
        self.saves_itself = False
        self.slots = slots_of(type(obj))
        keep_access_fast(self.attributes)

    @property
    def name(self) -> str:
        """Class name for error messages."""
        return type(self.obj).__qualname__

    def items(self) -> Iterator[tuple[str, Any]]:
        yield from self.attributes.items()
        if self.slots:
            yield from slot_items(self.obj, self.slots)

    def saved_items(self) -> list[tuple[str, Any]]:
        """Return the attributes to be saved; none if the layer saves itself."""
        items = () if self.saves_itself else self.items()
        return [item for item in items if item[0] not in self.excluded]

    def get(self, name: str) -> Any:
        """Return the value of an instance attribute, or None."""
        return dict(self.items()).get(name) if self.slots else self.attributes.get(name)

    def replace(self, values: Mapping[str, Any], others: str | None) -> None:
        """Set ``values``; delete attributes not in them, the excluded ones or ``others``."""
        own, slots = self.attributes, self.slots
        before = len(own)
        own.update({n: v for n, v in values.items() if n not in slots} if slots else values)
        if not slots and others is None and before == len(own) == len(self.excluded) + len(values):
            return  # the same names as before
        stays = {*self.excluded, *values, *(others or "").split()}
        for name in [name for name in own if name not in stays]:
            del own[name]
        for name in slots:
            if name in values:
                object.__setattr__(self.obj, name, values[name])
            elif name not in stays and hasattr(self.obj, name):
                object.__delattr__(self.obj, name)


def layers_of(env: Any) -> list[Layer]:
    """Return the environment and all it wraps, outermost first; then environments in attributes."""
    layers: list[Layer] = []
    _add_layers(env, layers, set())
    return layers


def _add_layers(obj: Any, layers: list[Layer], seen: set[int]) -> None:
    begin = len(layers)
    while obj is not None and id(obj) not in seen:
        seen.add(id(obj))
        layer = Layer(obj)
        layers.append(layer)
        inner = [layer.get(name) for name in WRAPPED_ENV_ATTRIBUTES]
        obj = next(filter(_is_env, inner), None)
    for layer in layers[begin:]:
        for _, value in sorted(layer.items()):
            if _is_env(value) and id(value) not in seen and not hides_data(type(value)):
                _add_layers(value, layers, seen)


def _is_env(value: Any) -> bool:
    kind = type(value)
    return (
        not isinstance(value, type)
        and callable(getattr(kind, "reset", None))
        and callable(getattr(kind, "step", None))
    )


def hides_data(kind: type) -> bool:
    """Return whether objects have more than attributes, as those of C libraries or list have."""
    pointers = len(slots_of(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    size = object.__basicsize__ + pointers * struct.calcsize("P")
    has_more = kind.__basicsize__ > size or kind.__itemsize__ > 0
    return has_more and handler_of(kind) is None


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the names of all slots of a class and its bases."""
    found: list[str] = []
    for each in kind.__mro__:
        names = each.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)


def slot_items(obj: Any, slots: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the slots that are set."""
    for name in slots:
        with suppress(AttributeError):
            yield name, object.__getattribute__(obj, name)


def keep_access_fast(attributes: dict[str, Any]) -> None:
    """Keep access to an object's attributes fast after its ``__dict__`` (the argument) was read."""
    # Up to Python 3.12, a materialized dict shares its class's keys, and the interpreter does not
    # cache lookups in it: steps of cheap environments took 5 to 18 % longer. Popping an item gives
    # the dict its own keys. One call into C pops and restores the item, without interrupts.
    if sys.version_info < (3, 13) and type(attributes) is dict and attributes:
        list(starmap(attributes.__setitem__, islice(iter(attributes.popitem, None), 1)))
