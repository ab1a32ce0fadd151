"""Search of an environment's values for functions, classes, memory, and objects to keep."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, MismatchError, class_name
from xuance_envs.state.handlers import Handler, handler_of
from xuance_envs.state.layers import Layer
from xuance_envs.state.values.functions import full_name
from xuance_envs.state.values.graph import ATOMIC, parts_of
from xuance_envs.state.values.reducers import BUFFERS, has_foreign_memory, memory_owner
from xuance_envs.state.values.resources import is_resource

Path = tuple[Any, ...]
"""Location of an object: layer number, attribute name, steps into the attribute's value."""

_NATIVE_MODULES = frozenset({"mujoco", "ale_py", "Box2D"})
_SHARED = {"multiprocessing.shared_memory.SharedMemory", "multiprocessing.managers.BaseProxy"}
_MAX_PATHS = 8
_BYTES = np.dtype(np.uint8)
_NAMED = type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType


@functools.cache
def why_refused(kind: Any) -> str | None:
    """Return the reason why objects of a type can be neither saved nor kept, or None."""
    if kind.__module__.partition(".")[0] in _NATIVE_MODULES and kind.__name__ != "Action":
        return "its library hides its state from Python"
    if kind in weakref.ProxyTypes:
        return "its target may no longer exist"
    if not _SHARED.isdisjoint(map(class_name, kind.__mro__)):
        return "other processes share it"
    return "a thread runs in one process only" if issubclass(kind, threading.Thread) else None


def _save_foreign(array: Any, _: Any) -> tuple[bytes, str, tuple[int, ...]]:
    return array.tobytes(), array.dtype.str, array.shape


def _check_foreign(array: Any, value: Any) -> None:
    content, dtype, shape = value
    if (dtype, tuple(shape)) != (array.dtype.str, array.shape) or len(content) != array.nbytes:
        raise MismatchError(
            "array that is stored in another library's memory",
            f"{dtype} {shape}",
            f"{array.dtype.str} {array.shape}",
        )
    if not array.flags.writeable and content != array.tobytes():
        raise FaultError("", "a read-only array in a library's memory differs from the saved one")


def _load_foreign(array: Any, value: Any, _: Any) -> None:
    if array.flags.writeable:
        content, dtype, shape = value
        array[...] = np.frombuffer(content, dtype).reshape(shape)


FOREIGN = Handler(_save_foreign, _load_foreign, _check_foreign)


def handler_for(value: Any) -> Handler | None:
    """Return the handler of an object; arrays in another library's memory have one, too."""
    if type(value) is np.ndarray:
        return FOREIGN if has_foreign_memory(value) else None
    return handler_of(type(value))


@dataclass
class Kept:
    """Kept object: a resource, or an object with a state handler."""

    obj: Any
    handler: Handler | None
    paths: list[Path] = field(default_factory=list)


class Walk:
    """Breadth-first search of an environment's values for objects to keep."""

    def __init__(self, layers: list[Layer], known: dict[int, Path]) -> None:
        self.found: dict[int, Kept] = {}
        self.functions: list[types.FunctionType] = []
        self.named: dict[str, Any] = {}
        self.buffers: list[Any] = []
        self.classes: dict[type, None] = {}
        self._layers = layers
        self._known = known
        self._seen: dict[int, Any] = {}
        self._waiting: deque[tuple[Any, Path]] = deque(
            (value, (k, name))
            for k, layer in enumerate(layers)
            for name, value in layer.saved_items()
        )
        while self._waiting:
            value, path = self._waiting.popleft()
            kind: Any = type(value)
            if kind in ATOMIC or id(value) in self._known:
                continue
            kept = self.found.get(id(value))
            if kept is not None:
                if len(kept.paths) < _MAX_PATHS:
                    kept.paths.append(path)
            elif id(value) not in self._seen:
                self._visit(value, kind, path)
        self._seen.clear()  # it would raise later reference counts

    def _visit(self, value: Any, kind: Any, path: Path) -> None:
        handler = handler_for(value)
        library = type(self._layers[path[0]].obj).__module__ if len(path) == 2 else ""
        if handler is not None or is_resource(value, library.partition(".")[0]):
            self.found[id(value)] = Kept(value, handler, [path])
            return
        self._seen[id(value)] = value
        if why_refused(kind) is not None:
            return
        self.classes[kind] = None
        if isinstance(value, types.FunctionType):
            self.functions.append(value)
        elif isinstance(value, BUFFERS):
            owner = memory_owner(value)
            if isinstance(owner, BUFFERS) and not getattr(owner, "dtype", _BYTES).hasobject:
                self.buffers.append(owner)
        if isinstance(value, _NAMED):
            module = isinstance(value, types.ModuleType)
            self.named[f"module.{value.__name__}" if module else full_name(value)] = value
            if isinstance(value, type):
                self.classes[value] = None
        for step, part in parts_of(value):
            if step is not None and type(part) not in ATOMIC:
                self._waiting.append((part, (*path, step)))
