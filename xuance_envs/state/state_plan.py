"""Selection of the attributes of an environment that are state."""

from __future__ import annotations

import functools
import io
import logging
import threading
import types
import zlib
from collections.abc import Iterator
from typing import Any

from xuance_envs.state.ale import REQUESTED_ATTRIBUTE
from xuance_envs.state.canonical import Difference, first_difference
from xuance_envs.state.faults import FaultError, type_name
from xuance_envs.state.fingerprint import Fingerprint, is_space, subspaces
from xuance_envs.state.graph import Attributes
from xuance_envs.state.handlers import Handler, handler_of
from xuance_envs.state.layers import WRAPPED_ENV_ATTRIBUTES, Layer, layers_of

Path = tuple[Any, ...]
"""Location of an object: layer number, attribute name, keys into containers."""

_EXCLUDED_NAMES = frozenset({"spec", "_cached_spec", REQUESTED_ATTRIBUTE})
_EXCLUDED_TYPES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    functools.partial,
    logging.Logger,
    logging.LoggerAdapter,
)
_EXCLUDED_MODULES = (
    "pygame",
    "_thread",
    "threading",
    "moviepy",
    "gymnasium.envs.mujoco.mujoco_rendering",
)
FUNCTION_KEY = "function"
"""Prefix of the keys that record a function attribute; alone, it marks states that record them."""

_NATIVE_MODULES = frozenset({"mujoco", "ale_py", "Box2D"})
_STATELESS_LIBRARIES = frozenset(
    {"gymnasium", "gym", "xuance_envs", "builtins", "abc", "typing", "collections", "ale_py"}
)
"""Libraries whose class attributes environments do not change."""


@functools.cache
def is_not_state(kind: Any) -> bool:
    """Return whether values of a type stay with their environment."""
    module = kind.__module__
    if issubclass(kind, threading.local):
        return False
    return issubclass(kind, _EXCLUDED_TYPES) or any(
        module == name or module.startswith(f"{name}.") for name in _EXCLUDED_MODULES
    )


def qualified_name(value: Any) -> str | None:
    """Return the full name of a function or class, None for other values."""
    if isinstance(value, functools.partial):
        return qualified_name(value.func)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    return None


@functools.cache
def is_native(kind: Any) -> bool:
    """Return whether a type belongs to a library that hides its state from Python."""
    return kind.__module__.partition(".")[0] in _NATIVE_MODULES and kind.__name__ != "Action"


class StatePlan:
    """Plan for saving and loading one environment."""

    def __init__(self, env: Any) -> None:
        self.layers = layers_of(env)
        self.excluded: list[dict[str, Any]] = []
        self.excluded_names: list[str] = []
        self.known: dict[int, Path] = {id(layer.obj): (k,) for k, layer in enumerate(self.layers)}
        self.handled: list[tuple[Handler, Any, Path]] = []
        self.self_saving_layers: set[int] = set()
        self.spaces: list[Any] = []
        self._functions: list[tuple[str, Any]] = []
        self._function_digests: dict[str, tuple[int, str]] = {FUNCTION_KEY: (0, "")}
        seen = set(self.known)
        for k, layer in enumerate(self.layers):
            handler = handler_of(type(layer.obj))
            if handler is not None:
                self.handled.append((handler, layer.obj, (k,)))
                self.self_saving_layers.add(k)
            excluded: dict[str, Any] = {}
            for name, value in layer.items():
                if len(self.known.get(id(value), ())) == 1:  # a layer
                    if name in WRAPPED_ENV_ATTRIBUTES:
                        excluded[name] = value
                elif self._is_excluded(k, layer, name, value, seen):
                    excluded[name] = value
                    self.known.setdefault(id(value), (k, name))
            self.excluded.append(excluded)
            self.excluded_names.append(" ".join(excluded))
        held = list(zip(self.layers, self.excluded, strict=True))
        self._slotted_layers = [(layer, excluded) for layer, excluded in held if layer.slots]
        self._excluded_in_dicts = [
            (layer.attributes, *item)
            for layer, excluded in held
            if not layer.slots
            for item in excluded.items()
        ]
        self._class_attributes = list(_class_attributes(self.layers))
        extra: dict[str, Any] = {"libraries": set()}
        for handler, obj, path in self.handled:
            if handler.describe is not None:
                library, facts = handler.describe(obj, self.owner(path))
                extra["libraries"].add(library)
                extra.update(facts)
        self.fingerprint = Fingerprint.of(self.layers, extra)

    def _is_excluded(self, k: int, layer: Layer, name: str, value: Any, seen: set[int]) -> bool:
        """Return whether an attribute is not state, and register its space, handler or function."""
        if name in _EXCLUDED_NAMES:
            return True
        kind: Any = type(value)
        if is_space(value):
            if id(value) not in seen:
                seen.add(id(value))
                self.spaces += subspaces(value)
            return True
        handler = handler_of(kind)
        if handler is not None:
            if id(value) not in seen and k not in self.self_saving_layers:
                seen.add(id(value))
                self.handled.append((handler, value, (k, name)))
            return True
        if kind is types.MethodType and handler_of(type(value.__self__)) is not None:
            return True
        if is_not_state(kind):
            function = qualified_name(value)
            if function is not None:
                key = f"{FUNCTION_KEY}: {layer.name}.{name}"
                self._function_digests[key] = zlib.crc32(function.encode()), function
            if isinstance(value, (types.FunctionType, functools.partial)):
                self._functions.append((f"{layer.name}.{name}", value))
            return True
        if is_native(kind) and k not in self.self_saving_layers:
            raise FaultError(
                f"{layer.name}.{name}",
                f"a {type_name(value)} cannot be saved: its library hides its state from Python. "
                f"Define __env_state__ and __set_env_state__ in {layer.name}, or use "
                "register_state",
            )
        return False

    def owner(self, path: Path) -> Any:
        """Return the layer that a path starts from."""
        return self.layers[path[0]].obj

    @property
    def replays(self) -> bool:
        """True if the state is restored by replay."""
        return any(handler.replays for handler, _, _ in self.handled)

    def is_current(self) -> bool:
        """Return whether all excluded attributes are still the same objects."""
        for attributes, name, value in self._excluded_in_dicts:
            if attributes.get(name) is not value:
                return False
        for layer, excluded in self._slotted_layers:
            attributes = dict(layer.items())
            for name, value in excluded.items():
                if attributes.get(name) is not value:
                    return False
        return True

    def first_difference(self, other: StatePlan) -> Difference | None:
        """Return the first difference in state from another environment of the same kind."""
        one, its = ((plan.contents(), plan.layer_tokens()) for plan in (self, other))
        return first_difference(one[0], its[0], one[1], its[1])

    def layer_tokens(self) -> dict[int, Any]:
        """Return the layers' tokens for comparisons, by id."""
        return {id(layer.obj): ("layer", k) for k, layer in enumerate(self.layers)}

    def contents(self) -> Attributes:
        """Return all that is saved: attributes, states of handled objects, spaces' generators."""
        found = Attributes()
        for k, (layer, excluded) in enumerate(zip(self.layers, self.excluded, strict=True)):
            if k not in self.self_saving_layers:
                for name, value in sorted(layer.items()):
                    if name not in excluded:
                        found[f"{layer.name}.{name}"] = value
        for handler, obj, path in self.handled:
            name = ".".join([self.layers[path[0]].name, *map(str, path[1:])])
            found[f"the state of {name}"] = handler.save(obj, self.owner(path))
        for k, space in enumerate(self.spaces):
            found[f"the generator of space {k}, {space}"] = space._np_random
        return found

    def resolve(self, path: Path) -> Any:
        """Return the object at a path."""
        layer = self.layers[path[0]]
        if len(path) == 1:
            return layer.obj
        _, name, *keys = path
        value = dict(layer.items())[name] if layer.slots else layer.attributes[name]
        for key in keys:
            value = value[key]
        return value

    def path_of(self, obj: Any) -> Path | None:
        """Return the path of an object in the environment's attributes and containers, or None."""
        for k, layer in enumerate(self.layers):
            for name, value in layer.items():
                for path, item in _walk_containers(value, (k, name)):
                    if item is obj:
                        return path
        return None

    def context_digests(self, pickler: Any) -> dict[str, tuple[int, str]]:
        """Return digests of what a restore cannot set: functions, closures, class attributes."""
        found = dict(self._function_digests)
        for name, function in self._functions:
            content = _closure_values(function)
            if content is not None:
                _add_digest(found, f"closure: {name}", content, pickler)
        for kind, name in self._class_attributes:
            if name in kind.__dict__:
                _add_digest(
                    found,
                    f"class attribute: {kind.__qualname__}.{name}",
                    kind.__dict__[name],
                    pickler,
                )
        return found


def _add_digest(found: dict[str, tuple[int, str]], name: str, value: Any, pickler: Any) -> None:
    file = io.BytesIO()
    try:
        pickler(file).dump(value)
    except Exception:
        return  # cannot be pickled, such as a lock: assumed equal
    found[name] = zlib.crc32(file.getvalue()), repr(value)[:200]


def _closure_values(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return function.args, function.keywords
    cells = function.__closure__
    if not cells:
        return None
    return [cell.cell_contents for cell in cells if _is_bound(cell)]


def _is_bound(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises for an empty cell
    except ValueError:
        return False
    return True


def _class_attributes(layers: list[Layer]) -> Iterator[tuple[type, str]]:
    seen = set()
    for layer in layers:
        for kind in type(layer.obj).__mro__:
            if kind in seen or kind.__module__.partition(".")[0] in _STATELESS_LIBRARIES:
                continue
            seen.add(kind)
            for name, value in kind.__dict__.items():
                if name.startswith("__") or name == "_abc_impl" or callable(value):
                    continue
                if hasattr(type(value), "__get__") or is_space(value):
                    continue  # properties, class methods, slots; spaces are compared elsewhere
                yield kind, name


_MAX_DEPTH = 3


def _walk_containers(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if len(path) > _MAX_DEPTH + 2:
        return
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return
    for key, item in items:
        yield from _walk_containers(item, (*path, key))
