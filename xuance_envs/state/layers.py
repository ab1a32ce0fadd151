"""The layers of an environment, and what each of them holds.

A layer is the environment itself, what it wraps, and any other environment among its attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, starmap
from typing import Any

__all__ = ["WRAPPED_ENV_ATTRIBUTES", "Layer", "layers_of"]

WRAPPED_ENV_ATTRIBUTES = ("env", "legacy_env")
"""Where wrappers have what they wrap."""


class Layer:
    """One layer: its attributes, wherever its class keeps them."""

    __slots__ = ("attributes", "obj", "slots")

    def __init__(self, obj: Any) -> None:
        self.obj = obj
        self.attributes: dict[str, Any] = getattr(obj, "__dict__", {})
        self.slots = _slots_of(type(obj))
        _restore_inline_values(self.attributes)

    @property
    def name(self) -> str:
        """Its class, as errors name it."""
        return type(self.obj).__qualname__

    def items(self) -> Iterator[tuple[str, Any]]:
        """Its attributes and their values."""
        yield from self.attributes.items()
        for name in self.slots:
            try:
                yield name, object.__getattribute__(self.obj, name)
            except AttributeError:
                continue

    def get(self, name: str) -> Any:
        """The value of an attribute of its own, None without one."""
        return dict(self.items()).get(name) if self.slots else self.attributes.get(name)

    def replace(
        self, values: Mapping[str, Any], kept: Mapping[str, Any], others: str | None
    ) -> None:
        """Gives it these attributes, and leaves it no others but those that are kept."""
        mine = self.attributes
        if not self.slots:
            before = len(mine)
            mine.update(values)
            if others is None and before == len(mine) == len(kept) + len(values):
                return  # they are what it had
        stays = {*kept, *values, *(others or "").split()}
        for name in [name for name in mine if name not in stays]:
            del mine[name]
        for name in self.slots:
            if name not in stays and hasattr(self.obj, name):
                object.__delattr__(self.obj, name)
        for name, value in values.items() if self.slots else ():
            if name in self.slots:
                object.__setattr__(self.obj, name, value)
            else:
                mine[name] = value


def layers_of(env: Any) -> list[Layer]:
    """The environment, what it wraps outermost first, then other environments that they hold."""
    layers: list[Layer] = []
    seen: set[int] = set()

    def walk(obj: Any) -> None:
        begin = len(layers)
        while obj is not None and id(obj) not in seen:
            seen.add(id(obj))
            layer = Layer(obj)
            layers.append(layer)
            obj = next(
                (inner for name in WRAPPED_ENV_ATTRIBUTES if _is_env(inner := layer.get(name))),
                None,
            )
        for layer in layers[begin:]:
            for _, value in sorted(layer.items()):
                if _is_env(value) and id(value) not in seen:
                    walk(value)

    walk(env)
    return layers


def _is_env(value: Any) -> bool:
    kind = type(value)
    return (
        not isinstance(value, type)
        and callable(getattr(kind, "reset", None))
        and callable(getattr(kind, "step", None))
    )


def _slots_of(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for each in kind.__mro__:
        names = each.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)


def _restore_inline_values(attributes: dict[str, Any]) -> None:
    """Keeps an object quick whose attributes have been asked for as a dict.

    Up to Python 3.12 that dict shares its keys with those of its class, and of such the interpreter
    does not remember where an attribute is: steps of cheap environments took 5 to 18 % longer. One
    that an item was popped from has keys of its own. The item is put back within the same call into
    C, so that no interrupt comes in between.
    """
    if attributes:
        list(starmap(attributes.__setitem__, islice(iter(attributes.popitem, None), 1)))
