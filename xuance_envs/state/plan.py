"""What of one environment is state and what is not: found out once, and looked after."""

from __future__ import annotations

import functools
import io
import logging
import threading
import types
import zlib
from collections.abc import Iterator
from typing import Any

from xuance_envs.state.ale import REQUESTED
from xuance_envs.state.faults import FaultError, kind_of
from xuance_envs.state.fingerprint import Fingerprint, is_space, parts_of_space
from xuance_envs.state.handlers import Handler, handler_of
from xuance_envs.state.layers import INNER, Layer, layers_of

__all__ = ["FUNCTION", "Path", "Plan", "is_kept", "name_of"]

Path = tuple[Any, ...]
"""Where something is: the number of a layer, the name of an attribute, and keys into containers."""

_KEPT_NAMES = frozenset({"spec", "_cached_spec", REQUESTED})
_KEPT_TYPES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    functools.partial,
    logging.Logger,
    logging.LoggerAdapter,
)
_KEPT_MODULES = (
    "pygame",
    "_thread",
    "threading",
    "moviepy",
    "gymnasium.envs.mujoco.mujoco_rendering",
)
FUNCTION = "function"
"""Begins what says which function an attribute is, and by itself that it is said at all."""

_NATIVE_MODULES = frozenset({"mujoco", "ale_py", "Box2D"})
_OUR_OWN = frozenset(
    {"gymnasium", "gym", "xuance_envs", "builtins", "abc", "typing", "collections", "ale_py"}
)
"""Libraries whose classes hold nothing that environments change."""


@functools.cache
def is_kept(kind: Any) -> bool:
    """Whether values of a type are no state: each environment keeps its own."""
    module = kind.__module__
    if issubclass(kind, threading.local):
        return False
    return issubclass(kind, _KEPT_TYPES) or any(
        module == name or module.startswith(f"{name}.") for name in _KEPT_MODULES
    )


def name_of(value: Any) -> str | None:
    """The full name of a function or a class, by which it is told from others."""
    if isinstance(value, functools.partial):
        return name_of(value.func)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    return None


@functools.cache
def is_native(kind: Any) -> bool:
    """Whether values of a type are of a library that keeps its state from Python."""
    return kind.__module__.partition(".")[0] in _NATIVE_MODULES and kind.__name__ != "Action"


class Plan:
    """What is done for one environment whenever it is saved or loaded.

    Args:
        env: the environment.

    Attributes:
        layers (list): its layers.
        kept (list): by layer, the attributes that are no state, with their values.
        kept_names (list): by layer, the names of these, as one word each.
        known (dict): where each of these values, and each layer, is, by its identity.
        handled (list): what says for itself what its state is: its handler and where it is.
        whole (set): the layers among these.
        spaces (list): the spaces, and those inside them, whose generators are state.
        fingerprint (Fingerprint): what the environment is.

    Raises:
        FaultError: it has something that cannot be saved.
    """

    def __init__(self, env: Any) -> None:
        self.layers = layers_of(env)
        self.kept: list[dict[str, Any]] = []
        self.kept_names: list[str] = []
        self.known: dict[int, Path] = {id(layer.obj): (k,) for k, layer in enumerate(self.layers)}
        self.handled: list[tuple[Handler, Any, Path]] = []
        self.whole: set[int] = set()
        self.spaces: list[Any] = []
        self._functions: list[tuple[str, Any]] = []
        self._named: dict[str, tuple[int, str]] = {FUNCTION: (0, "")}
        seen = set(self.known)
        for k, layer in enumerate(self.layers):
            handler = handler_of(type(layer.obj))
            if handler is not None:
                self.handled.append((handler, layer.obj, (k,)))
                self.whole.add(k)
            kept: dict[str, Any] = {}
            for name, value in layer.items():
                if len(self.known.get(id(value), ())) == 1:  # another layer
                    if name in INNER:
                        kept[name] = value
                elif self._keeps(k, layer, name, value, seen):
                    kept[name] = value
                    self.known.setdefault(id(value), (k, name))
            self.kept.append(kept)
            self.kept_names.append(" ".join(kept))
        held = list(zip(self.layers, self.kept, strict=True))
        self._with_slots = [(layer, kept) for layer, kept in held if layer.slots]
        self._kept_in_dicts = [
            (layer.attributes, *item)
            for layer, kept in held
            if not layer.slots
            for item in kept.items()
        ]
        self._class_attributes = list(_class_attributes(self.layers))
        extra: dict[str, Any] = {"libraries": set()}
        for handler, obj, path in self.handled:
            if handler.describe is not None:
                library, facts = handler.describe(obj, self.owner(path))
                extra["libraries"].add(library)
                extra.update(facts)
        self.fingerprint = Fingerprint.of(self.layers, extra)

    def _keeps(self, k: int, layer: Layer, name: str, value: Any, seen: set[int]) -> bool:
        """Whether an attribute is none of its layer's state; takes note of what it is instead."""
        if name in _KEPT_NAMES:
            return True
        kind: Any = type(value)
        if is_space(value):
            if id(value) not in seen:
                seen.add(id(value))
                self.spaces += parts_of_space(value)
            return True
        handler = handler_of(kind)
        if handler is not None:
            if id(value) not in seen and k not in self.whole:
                seen.add(id(value))
                self.handled.append((handler, value, (k, name)))
            return True
        if kind is types.MethodType and handler_of(type(value.__self__)) is not None:
            return True
        if is_kept(kind):
            function = name_of(value)
            if function is not None:
                what = f"{FUNCTION}: {layer.name}.{name}"
                self._named[what] = zlib.crc32(function.encode()), function
            if isinstance(value, (types.FunctionType, functools.partial)):
                self._functions.append((f"{layer.name}.{name}", value))
            return True
        if is_native(kind) and k not in self.whole:
            raise FaultError(
                f"{layer.name}.{name}",
                f"a {kind_of(value)} cannot be saved: its library keeps its state from Python. "
                f"Give {layer.name} __env_state__ and __set_env_state__, or use register_state",
            )
        return False

    def owner(self, path: Path) -> Any:
        """The layer that something is in, or that it is."""
        return self.layers[path[0]].obj

    @property
    def replays(self) -> bool:
        """Whether a state of it is put in by repeating what led to it."""
        return any(handler.replays for handler, _, _ in self.handled)

    def is_current(self) -> bool:
        """Whether what it knows of the environment still holds."""
        for attributes, name, value in self._kept_in_dicts:
            if attributes.get(name) is not value:
                return False
        for layer, kept in self._with_slots:
            attributes = dict(layer.items())
            for name, value in kept.items():
                if attributes.get(name) is not value:
                    return False
        return True

    def at(self, path: Path) -> Any:
        """What is at a place.

        Raises:
            LookupError: there is nothing.
        """
        layer = self.layers[path[0]]
        if len(path) == 1:
            return layer.obj
        _, name, *keys = path
        value = dict(layer.items())[name] if layer.slots else layer.attributes[name]
        for key in keys:
            value = value[key]
        return value

    def find(self, obj: Any) -> Path | None:
        """Where in the containers of an environment something is that is no state."""
        for k, layer in enumerate(self.layers):
            for name, value in layer.items():
                for path, item in _contents(value, (k, name)):
                    if item is obj:
                        return path
        return None

    def around(self, pickler: Any) -> dict[str, tuple[int, str]]:
        """Which functions it has, what these and classes hold: what cannot be put into another one.

        Args:
            pickler: pickles a value into a file.

        Returns:
            By name a number that tells whether it is the same, and the beginning of it in words.
        """
        found = dict(self._named)
        for name, function in self._functions:
            content = _held_by(function)
            if content is not None:
                _note(found, f"closure: {name}", content, pickler)
        for kind, name in self._class_attributes:
            if name in kind.__dict__:
                _note(
                    found,
                    f"class attribute: {kind.__qualname__}.{name}",
                    kind.__dict__[name],
                    pickler,
                )
        return found


def _note(found: dict[str, tuple[int, str]], name: str, value: Any, pickler: Any) -> None:
    file = io.BytesIO()
    try:
        pickler(file).dump(value)
    except Exception:
        return  # such as a function or a lock: it is taken to be the same
    found[name] = zlib.crc32(file.getvalue()), repr(value)[:200]


def _held_by(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return function.args, function.keywords
    cells = function.__closure__
    if not cells:
        return None
    return [cell.cell_contents for cell in cells if _is_filled(cell)]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # an empty one raises
    except ValueError:
        return False
    return True


def _class_attributes(layers: list[Layer]) -> Iterator[tuple[type, str]]:
    seen = set()
    for layer in layers:
        for kind in type(layer.obj).__mro__:
            if kind in seen or kind.__module__.partition(".")[0] in _OUR_OWN:
                continue
            seen.add(kind)
            for name, value in kind.__dict__.items():
                if name.startswith("__") or name == "_abc_impl" or callable(value):
                    continue
                if hasattr(type(value), "__get__") or is_space(value):
                    continue  # properties, class methods, slots; a space is compared as such
                yield kind, name


_DEEPEST = 3


def _contents(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if len(path) > _DEEPEST + 2:
        return
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return
    for key, item in items:
        yield from _contents(item, (*path, key))
