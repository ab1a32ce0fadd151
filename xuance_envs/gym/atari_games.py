"""Lookup and making of Atari games, and imports of ale-py and OpenCV."""

from __future__ import annotations

import difflib
import importlib
import operator
import re
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

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
    ale_py = load("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py


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


def load(module: str) -> ModuleType:
    """Import a module of ale-py or OpenCV."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra("Atari_Env", "atari", error) from error


def rom_path(game: str) -> str:
    return str(importlib.import_module("ale_py.roms").get_rom_path(game))


def make_game(
    env_id: str,
    *,
    render_mode: str | None,
    obs_type: str,
    repeat_action_probability: float,
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Make a game of ale-py by its name."""
    for name, value, choices in (
        ("obs_type", obs_type, ("grayscale", "rgb", "ram")),
        ("render_mode", render_mode, ("rgb_array", "human", None)),
    ):
        if value not in choices:
            raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
    if not 0 <= repeat_action_probability <= 1:
        raise ValueError(
            "repeat_action_probability: expected a number from 0 to 1, "
            f"got {repeat_action_probability!r}"
        )
    if kwargs.get("continuous") or kwargs.get("sound_obs"):
        raise ValueError(
            "continuous and sound_obs are not supported: expected Discrete actions, and screen "
            "or RAM observations; use Gym_Env for continuous actions or sound observations"
        )
    load_ale()
    load("cv2")
    return gymnasium.make(
        full_id(env_id),
        render_mode=render_mode,
        obs_type=obs_type,
        repeat_action_probability=repeat_action_probability,
        **{"disable_env_checker": True, **kwargs},
    )


def parse_frame_skip(frame_skip: Any) -> tuple[int, ...]:
    """Return the fixed number of frames, or the two bounds."""
    skips = tuple(frame_skip) if isinstance(frame_skip, tuple | list) else (frame_skip,)
    try:
        skips = tuple(map(operator.index, skips))
    except TypeError:
        skips = ()
    if len(skips) not in (1, 2) or skips[0] < 1 or (len(skips) == 2 and skips[0] >= skips[1]):
        raise ValueError(
            "frame_skip: expected an int of at least 1, or a pair (low, high) of ints with "
            f"1 <= low < high, got {frame_skip!r}"
        )
    return skips


def parse_image_size(image_size: Any) -> tuple[int, int]:
    sizes = image_size if isinstance(image_size, tuple | list | np.ndarray) else (image_size,) * 2
    try:
        height, width = map(operator.index, sizes)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise ValueError(
            "image_size: expected (height, width), one int for a square, or None for the "
            f"screen size, got {image_size!r}"
        )
    return height, width


def at_least(least: int, number: Any, name: str) -> int:
    if not isinstance(number, int | np.integer) or number < least:
        raise ValueError(f"{name}: expected an int of at least {least}, got {number!r}")
    return int(number)
