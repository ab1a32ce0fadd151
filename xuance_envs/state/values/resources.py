"""The list of all resources: objects of one process that stay with their environment.

Windows, renderers, sockets, locks and files exist in one process only. They are not saved. Saving
raises if results may depend on a resource's condition, as with a held lock.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xuance_envs.state.faults import class_name


def _held(value: Any) -> str | None:
    return None if repr(value).startswith("<unlocked") else "it is held"


def _readable(value: Any) -> str | None:
    with suppress(ValueError):  # it is closed
        if value.readable():
            return "its read position is unknown"
    return None


def _connected(value: Any) -> str | None:
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
    for each in kind.__mro__:
        found = _RESOURCES.get(name_of(each))
        if found is not None:
            return found
    return None


def name_of(kind: Any) -> str:
    """Return the name under which a class is listed."""
    name = class_name(kind)
    return "pygame.font.Font" if name == "pygame.ftfont.Font" else name


def is_resource(value: Any, library: str = "") -> bool:
    """Return whether a value held by an environment from ``library`` is a resource."""
    kind: Any = type(value)
    if _check_of(kind) is not None:
        return True
    if name_of(kind) == _SURFACE:
        if library in DRAWING_LIBRARIES:
            return True
        pygame = importlib.import_module("pygame")
        return pygame.display.get_init() and value is pygame.display.get_surface()
    return False


def why_not_kept(value: Any) -> str | None:
    """Return why a resource prevents saving, or None."""
    kind: Any = type(value)
    check = _check_of(kind)
    return None if check is None else check(value)
