"""Making of a single game from checked arguments, for ``Atari_Env``."""

from __future__ import annotations

import operator
from typing import Any

import gymnasium
import numpy as np

from xuance_envs.gym.atari_games import full_id, load_ale, load_cv2

_OBS_TYPES = ("grayscale", "rgb", "ram")
_RENDER_MODES = ("rgb_array", "human", None)


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
        ("obs_type", obs_type, _OBS_TYPES),
        ("render_mode", render_mode, _RENDER_MODES),
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
    load_cv2()
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
