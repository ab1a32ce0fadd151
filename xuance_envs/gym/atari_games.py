"""Lookup of Atari games, and imports of ale-py and OpenCV."""

from __future__ import annotations

import difflib
import importlib
import re
from types import ModuleType
from typing import Any

import gymnasium

from xuance_envs.extras import missing_extra

_ENTRY_POINT = "ale_py.env:AtariEnv"
_NAMESPACE = "ALE/"
_VERSION = "-v5"
# Ids that ale-py registers: their versions, and the suffixes that follow a game's name.
_VERSIONS = (0, 4, 5)
_VARIANT = re.compile(r"(-ram)?(Deterministic|NoFrameskip)?$")


class UnknownGameError(gymnasium.error.NameNotFound, ValueError):
    """ale-py does not have the requested game; the message lists the closest names."""


def load_ale() -> ModuleType:
    """Import ale-py, which registers its games with Gymnasium, and silence its banner."""
    ale_py = _load("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py


def load_cv2() -> Any:
    return _load("cv2")


def full_id(env_id: str) -> str:
    """Return the id under which a game is registered."""
    load_ale()
    for candidate in (_NAMESPACE + env_id, _NAMESPACE + env_id + _VERSION, env_id):
        spec = gymnasium.registry.get(candidate)
        if spec is not None and spec.entry_point == _ENTRY_POINT:
            return candidate
    closest = ", ".join(map(repr, closest_games(env_id))) or "none"
    raise UnknownGameError(
        f"ale-py has no game {env_id!r}: expected an id such as 'ALE/Breakout-v5', 'Breakout-v5' "
        f"or 'Breakout'. Closest matches: {closest}"
    )


def is_game(env_id: str) -> bool:
    """Return whether ale-py registers this id."""
    spec = gymnasium.registry.get(env_id)
    if spec is None or spec.entry_point != _ENTRY_POINT or spec.version not in _VERSIONS:
        return False
    return _NAMESPACE + _VARIANT.sub("", spec.name) + _VERSION in gymnasium.registry


def closest_games(env_id: str) -> list[str]:
    """Return the names of up to three games spelled most like an id, best match first."""
    games = {
        name.removeprefix(_NAMESPACE).removesuffix(_VERSION): name
        for name, spec in gymnasium.registry.items()
        if name.startswith(_NAMESPACE) and spec.entry_point == _ENTRY_POINT
    }
    plain = {_plain(game): game for game in games}
    wanted = _plain(env_id.removeprefix(_NAMESPACE).partition("-")[0])
    return [plain[match] for match in difflib.get_close_matches(wanted, plain, 3, 0.5)]


def single_action(name: str) -> Any:
    """Return the emulator's action with this name, such as ``"NOOP"``."""
    return load_ale().Action.__members__[name]


def _plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").lower()


def _load(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra("Atari_Env", "atari", error) from error


def rom_path(game: str) -> str:
    return str(importlib.import_module("ale_py.roms").get_rom_path(game))
