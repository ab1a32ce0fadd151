"""Checkpoint support for Atari's emulator.

ale-py's states omit the last executed action, which sticky actions may repeat. With these states
alone, 12 to 16 % of restored games diverged. Once per frame and player, the emulator draws a number
that decides whether it repeats the last action. The state contains the emulator's random generator,
a Mersenne Twister. Its past draws can be computed, and show which requested action was executed
last. A restore executes that action in one frame without stickiness, and then loads the state.

The states also omit values that the emulator initializes in its first frame after a reset. Qbert
depends on these values. If the saved emulator had executed no frame since its reset, a restore
first resets the target emulator. Otherwise, a target that has executed no frame since its own reset
first executes one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, type_name
from xuance_envs.state.handlers import NATIVE, Handler

ALE_ENV_CLASS = "ale_py.env.AtariEnv"
"""ale-py's environment class, which does not record the actions that it requests."""

ALE_CLASS = "ale_py._ale_py.ALEInterface"

REQUESTED_ATTRIBUTE = "_requested_actions"
"""Environment attribute with the requests to the emulator, oldest first, as (action, strength,
frames). The oldest action was certainly executed, unless `_MAX_REQUESTS` dropped older requests.
"""

_MAX_STICKINESS = 0.9
_MAX_REQUESTS = 512
"""At stickiness 0.9, the probability that none of these requests was executed is below 10^-23."""

# Layout of a serialized state: the episode's frame count, mode and difficulty; at the end, a mark,
# the length of a text, and this text: the random generator for sticky actions.
_EPISODE_FRAMES = slice(12, 16)
_SETTINGS = slice(16, 24)
_OVER = struct.pack("=i", 2**30)
_MARK = b"\xb2\xfa\xb1\xfa"
_LENGTH = struct.Struct("<i")
_GENERATOR = re.compile(rb"(?:\d+ ){624}\d+")
_WORDS, _MIDDLE = 624, 397
_BITS = 0xFFFFFFFF
_UNKNOWN_FORMAT = (
    "cannot parse the emulator's state: the installed version of ale-py uses an unknown format"
)

_Requested = Sequence[tuple[Any, float, int]]
_Value = tuple[bytes, int, float]


def last_executed_action(
    state: bytes, requested: _Requested, stickiness: float
) -> tuple[Any, float]:
    """Return the last executed action, and its strength (1 unless actions are continuous)."""
    draws = _draws_newest_first(state[_generator(state)].split())
    for action, strength, frames in reversed(requested):
        for _ in range(frames):
            next(draws)  # the second player's
            if next(draws) / 2**32 >= stickiness:
                return action, strength
    action, strength, _ = requested[0]
    return action, strength


def _generator(state: bytes) -> slice:
    mark = state.rfind(_MARK)
    start = mark + len(_MARK) + _LENGTH.size
    if mark >= 0 and start < len(state):
        (length,) = _LENGTH.unpack_from(state, start - _LENGTH.size)
        if 2 * _WORDS < length <= len(state) - start:
            return slice(start, start + length)
    raise FaultError("", _UNKNOWN_FORMAT)


def _draws_newest_first(written: list[bytes]) -> Iterator[int]:
    """Yield a Mersenne Twister's past draws, newest first."""
    position = int(written[_WORDS])
    for word in reversed(written[:position]):
        yield _temper(int(word))
    newer = list(map(int, written[:_WORDS]))
    while True:
        both = [0] * _WORDS + newer
        for k in reversed(range(_WORDS)):
            upper = _untwist(both[k + _WORDS] ^ both[k + _MIDDLE])
            lower = _untwist(both[k + _WORDS - 1] ^ both[k + _MIDDLE - 1])
            both[k] = (upper & 0x80000000) | (lower & 0x7FFFFFFF)
            yield _temper(both[k])
        newer = both[:_WORDS]


def _untwist(word: int) -> int:
    odd = word >> 31
    return (((word ^ 0x9908B0DF if odd else word) << 1) | odd) & _BITS


def _temper(word: int) -> int:
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return word ^ (word >> 18)


@functools.cache
def _untemper(drawn: int) -> int:
    """Return the word from which a draw was computed."""
    word = drawn ^ (drawn >> 18)
    word ^= (word << 15) & 0xEFC60000
    half = word
    for _ in range(5):  # each round restores seven more bits
        half = word ^ ((half << 7) & 0x9D2C5680)
    word = half
    for _ in range(3):
        word = half ^ (word >> 11)
    return word


def _serialized(state: Any) -> bytes:
    # Before 0.12, ale-py's `serialize` decodes the bytes as text. Its pickles hold them unchanged.
    pickled = state.__getstate__()
    written: bytes = pickled[0] if isinstance(pickled, tuple) else pickled
    return written


class ALEActionRecorder:
    """Recorder of the actions that an ale-py environment requests from its emulator."""

    __env_state__ = None

    def __init__(self, env: Any) -> None:
        self.step, self.reset = env.step, env.reset
        self._env = env
        actions = importlib.import_module("ale_py").Action
        self._actions = [getattr(actions, name) for name in env.get_action_meanings()]
        self._requested: deque[tuple[Any, float, int]] = deque(maxlen=_MAX_REQUESTS)
        setattr(env, REQUESTED_ATTRIBUTE, self._requested)
        env.step, env.reset = self._step, self._reset

    @classmethod
    def attach(cls, env: Any) -> None:
        """Attach a recorder if actions are sticky, unless one exists."""
        sticky = env.ale.getFloat("repeat_action_probability") > 0
        if sticky and not hasattr(env, REQUESTED_ATTRIBUTE):
            cls(env)

    def _reset(self, **kwargs: Any) -> Any:
        result = self.reset(**kwargs)
        self._requested.clear()
        self._requested.append((importlib.import_module("ale_py").Action.NOOP, 1.0, 0))
        return result

    def _step(self, action: Any) -> Any:
        env = self._env
        frames = env._frameskip  # `spec` has it only for environments made by id
        if type(frames) is not int:  # a range: draw what the step will draw
            bits = env.np_random.bit_generator
            before = bits.state
            frames = int(env.np_random.integers(*frames))
            bits.state = before
        if env.continuous:
            x, y = action[0] * np.cos(action[1]), action[0] * np.sin(action[1])
            threshold = env.continuous_action_threshold
            emulated = env.map_action_idx(
                left_center_right=-int(x < -threshold) + int(x > threshold),
                down_center_up=-int(y < -threshold) + int(y > threshold),
                fire=(action[-1] > threshold),
            )
            strength = float(action[0])
        else:
            emulated, strength = self._actions[action], 1.0
        result = self.step(action)
        self._requested.append((emulated, strength, frames))
        return result


def _requested_actions_of(owner: Any) -> Any:
    return getattr(owner, "__dict__", {}).get(REQUESTED_ATTRIBUTE)


def _save(ale: Any, owner: Any) -> _Value:
    state = _serialized(ale.cloneState(include_rng=True))
    stickiness, requested = ale.getFloat("repeat_action_probability"), _requested_actions_of(owner)
    if stickiness == 0:
        return state, 0, 1.0
    if requested is None or stickiness > _MAX_STICKINESS:
        raise FaultError(
            f"{type(owner).__qualname__}'s emulator",
            "the action that it may repeat is unknown. An exact state needs "
            f"repeat_action_probability of at most {_MAX_STICKINESS} (here {stickiness:g}) and an "
            "environment made by a vectorized environment or by check_saving",
        )
    action, strength = last_executed_action(state, requested, stickiness)
    return state, action.value, strength


def _check(ale: Any, value: _Value) -> None:
    state, number, strength = value
    if not (type(state) is bytes and len(state) > 100 and type(number) is int):
        raise FaultError(
            "",
            "expected an emulator's state as bytes and an action as int, got "
            f"{type_name(state)} and {type_name(number)}",
        )
    text = state[_generator(state)]
    if text.translate(None, b"0123456789") != b" " * _WORDS:
        raise FaultError(
            "", f"expected {_WORDS + 1} numbers as a random generator, got {text[:40]!r}..."
        )
    importlib.import_module("ale_py").Action(number)
    float(strength)


def _load(ale: Any, value: _Value, owner: Any) -> None:
    library = importlib.import_module("ale_py")
    state, number, strength = value
    action = library.Action(number)
    frames_after_reset = _frames_after_reset(ale, _game_of(owner), state[_SETTINGS])
    if struct.unpack("=i", state[_EPISODE_FRAMES]) == (frames_after_reset,):
        ale.reset_game()
    else:
        if ale.getEpisodeFrameNumber() == frames_after_reset:
            ale.act(library.Action.NOOP)
        if ale.getFloat("repeat_action_probability") > 0:
            ale.restoreState(library.ALEState(_without_sticky_actions(state)))
            ale.act(action, strength)
    ale.restoreState(library.ALEState(state))
    requested = _requested_actions_of(owner)
    if requested is not None:
        requested.clear()
        requested.append((action, strength, 0))


_known_frames: dict[tuple[Any, bytes], int] = {}


def _frames_after_reset(ale: Any, game: str | None, settings: bytes) -> int:
    """Return the frame count after a reset, which is above 0 in some game modes."""
    key = game, settings
    if game is None or key not in _known_frames:
        ale.reset_game()
        _known_frames[key] = ale.getEpisodeFrameNumber()
    return _known_frames[key]


def _without_sticky_actions(state: bytes) -> bytes:
    """Return the state with a generator that makes the emulator execute the next action."""
    # The frame count exceeds any frame limit. A game with a limit only records the action.
    place = _generator(state)
    rest = state[place].split(b" ", 2)[2]
    words = b"%d " % _untemper(_BITS) * 2 + rest[: rest.rindex(b" ")] + b" 0"
    before = state[: _EPISODE_FRAMES.start], _OVER
    between = state[_EPISODE_FRAMES.stop : place.start - _LENGTH.size]
    return b"".join([*before, between, _LENGTH.pack(len(words)), words, state[place.stop :]])


def _fork(ale: Any, fork: Any) -> None:
    library = importlib.import_module("ale_py")
    state = _serialized(ale.cloneState(include_rng=True))
    pieces, end = [], 0
    for match in _GENERATOR.finditer(state):
        words = fork.seed_sequence(match.group().decode()).generate_state(_WORDS).tolist()
        text = b" ".join(b"%d" % word for word in [*words, _WORDS])
        start, size = match.start(), _LENGTH.size
        if _LENGTH.unpack_from(state, start - size)[0] != len(match.group()):
            raise FaultError("", _UNKNOWN_FORMAT)
        pieces += [state[end : start - size], _LENGTH.pack(len(text)), text]
        end = match.end()
    ale.restoreState(library.ALEState(b"".join([*pieces, state[end:]])))


def _describe(ale: Any, owner: Any) -> tuple[str, dict[str, Any]]:
    game, stickiness = _game_of(owner), ale.getFloat("repeat_action_probability")
    rom = {} if game is None else {"ROM": f"{game}, {_rom_digest(game)}"}
    return "ale_py", {**rom, "repeat_action_probability": round(stickiness, 6)}


def _game_of(owner: Any) -> str | None:
    game = getattr(getattr(owner, "unwrapped", None), "_game", None)
    return game if isinstance(game, str) else None


@functools.cache
def _rom_digest(game: str) -> str:
    path = importlib.import_module("ale_py.roms").get_rom_path(game)
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()


NATIVE[ALE_CLASS] = Handler(_save, _load, _check, _describe, _fork)
