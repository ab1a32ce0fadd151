"""Objects to keep, which stay with their environment, and the search of its values for them.

Objects to keep have a state handler or are resources. Windows, renderers, sockets, locks and files
exist in one process only. They are not saved. Saving raises if results may depend on a resource's
condition, as with a held lock.
"""

from __future__ import annotations

import functools
import importlib
import socket
import types
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, MismatchError, class_name, module_of
from xuance_envs.state.handlers import Handler, handler_of
from xuance_envs.state.layers import Layer
from xuance_envs.state.values.functions import full_name, functions_of_class, nested_codes
from xuance_envs.state.values.graph import ATOMIC, parts_of
from xuance_envs.state.values.reducers import BUFFERS, has_foreign_memory, memory_owner

Path = tuple[Any, ...]
"""Location of an object: layer number, attribute name, steps into the attribute's value."""

_NATIVE_MODULES = frozenset({"mujoco", "ale_py", "Box2D"})
_REFUSED = {
    "multiprocessing.shared_memory.SharedMemory": "other processes share it",
    "multiprocessing.managers.BaseProxy": "other processes share it",
    "multiprocessing.connection._ConnectionBase": "the state of its peer is unknown",
    "subprocess.Popen": "the state of its process is unknown",
    "ctypes.CDLL": "its library hides its state from Python",
    "threading.Thread": "a thread runs in one process only",
}
"""By class name, the reason why objects can be neither saved nor kept."""
_MAX_PATHS = 8
_BYTES = np.dtype(np.uint8)
_NAMED = type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType


def _held(value: Any) -> str | None:
    return None if repr(value).startswith("<unlocked") else "it is held"


def _readable(value: Any) -> str | None:
    with suppress(ValueError):  # it is closed
        if value.readable():
            return "its read position is unknown"
    return None


def _connected(value: Any) -> str | None:
    if value.type == socket.SOCK_DGRAM and value.fileno() >= 0:
        return "it may exchange data without a connection, and the state of its peers is unknown"
    with suppress(OSError):
        value.getpeername()
        return "it is connected, and the state of its peer is unknown"
    return None


_FILES = "TextIOWrapper", "BufferedWriter", "BufferedReader", "BufferedRandom", "FileIO"
_STATELESS = (
    *("pygame.time.Clock", "pygame.font.Font", "pygame.freetype.Font", "pygame.mixer.Sound"),
    *("pygame.mixer.Channel", "pygame.joystick.Joystick", "pygame.window.Window"),
    *("pygame._sdl2.video.Window", "pygame._sdl2.video.Renderer", "pygame._sdl2.video.Texture"),
    *("pygame._render.Renderer", "pygame._render.Texture", "mujoco.renderer.Renderer"),
    "gymnasium.envs.mujoco.mujoco_rendering.MujocoRenderer",
    "gymnasium.envs.mujoco.mujoco_rendering.BaseRender",
    *("tempfile.TemporaryDirectory", "weakref.finalize"),
)
_RESOURCES: dict[str, Callable[[Any], str | None]] = {
    "_thread.lock": _held,
    "_thread.RLock": _held,
    **dict.fromkeys([f"_io.{name}" for name in _FILES], _readable),
    "socket.socket": _connected,
    **dict.fromkeys(_STATELESS, lambda value: None),
}
"""By class name, functions that return why an object prevents saving, or None."""

_SURFACE = "pygame.surface.Surface"
DRAWING_LIBRARIES = frozenset({"gymnasium", "gym"})
"""Libraries whose environments redraw their surfaces entirely before they show or return them."""


@functools.cache
def _check_of(kind: Any) -> Callable[[Any], str | None] | None:
    names = map(name_of, kind.__mro__)
    return next((_RESOURCES[name] for name in names if name in _RESOURCES), None)


def name_of(kind: Any) -> str:
    """Return the name under which a class is listed."""
    name = class_name(kind)
    return "pygame.font.Font" if name == "pygame.ftfont.Font" else name


def is_resource(value: Any, library: str = "") -> bool:
    """Return whether a value held by an environment from ``library`` is a resource."""
    kind: Any = type(value)
    if name_of(kind) != _SURFACE:
        return _check_of(kind) is not None
    if library in DRAWING_LIBRARIES:
        return True
    pygame = importlib.import_module("pygame")
    return pygame.display.get_init() and value is pygame.display.get_surface()


def why_not_kept(value: Any) -> str | None:
    kind: Any = type(value)
    check = _check_of(kind)
    return None if check is None else check(value)


@functools.cache
def why_refused(kind: Any) -> str | None:
    """Return the reason why objects of a type can be neither saved nor kept, or None."""
    if module_of(kind).partition(".")[0] in _NATIVE_MODULES and kind.__name__ != "Action":
        return "its library hides its state from Python"
    if kind in weakref.ProxyTypes:
        return "its target may no longer exist"
    for base in kind.__mro__:
        if (reason := _REFUSED.get(class_name(base))) is not None:
            return reason
    return None


_OUTSIDE_OBJECTS = frozenset(
    {"pybullet", "pybullet_utils", "nes_py", "multi_agent_ale_py", "traci", "libsumo"}
)
"""Libraries whose simulations are in the library itself; objects only hold their numbers."""


@functools.cache
def library_with_state(kind: Any) -> str | None:
    """Return the library in which objects of a class keep their state, or None."""
    found = [module_of(base) for base in kind.__mro__]
    for base in kind.__mro__:
        for _, function in functions_of_class(base):
            names = [name for code in nested_codes(function.__code__) for name in code.co_names]
            values = map(function.__globals__.get, names)
            found += [value.__name__ for value in values if isinstance(value, types.ModuleType)]
    roots = (module.partition(".")[0] for module in found)
    return next((root for root in roots if root in _OUTSIDE_OBJECTS), None)


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
