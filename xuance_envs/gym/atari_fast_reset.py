"""Fast game resets by restoring a saved emulator state.

An emulator reset costs as much as a dozen steps. Most games always start in the same state, which
can be restored instead. Some games read leftover memory or the console's timer, and some keep state
that the emulator does not save. Each game is therefore reset and restored several times on a
separate emulator first. If the resulting states are not all bitwise identical, the game is always
reset in full.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from xuance_envs.gym.atari_games import load_ale, single_action

# Byte positions in a serialized state: the frame counts (total and of this game), then mode and
# difficulty.
_FRAME_NUMBER = slice(8, 12)
_SETTINGS = slice(16, 24)
_FRAME_COUNTS = struct.Struct("=8xii")

# The console's random generator, a Mersenne Twister, as text. Only a reset draws from it, to set
# the timer. Its state is irrelevant for games that do not read the timer.
_GENERATOR = re.compile(rb"(?:\d+ ){624}\d+")

_TRIALS = 3
_TRIAL_STEPS = 30
_WATCHED_FRAMES = 12
_MAX_STICKY_PROBABILITY = 0.9
_NEGLIGIBLE_PROBABILITY = 1e-18


class FastReset:
    """Fast restart of an emulator's game."""

    __env_state__ = None

    def __init__(self, ale: Any, rom: str, mode: int | None, difficulty: int | None) -> None:
        self._ale = ale
        self._game = rom, mode, difficulty
        self._noop = single_action("NOOP")
        sticky = float(ale.getFloat("repeat_action_probability"))
        self._is_possible = sticky <= _MAX_STICKY_PROBABILITY
        # So many no-ops that sticky actions are very unlikely to replace all of them.
        self._noops = (
            math.ceil(math.log(_NEGLIGIBLE_PROBABILITY) / math.log(sticky)) if 0 < sticky < 1 else 0
        )

    def restore(self) -> bool:
        """Restart an ended game without a reset; return False if this is not possible."""
        ale = self._ale
        if not (self._is_possible and ale.game_over()):
            return False
        fresh = state_after_reset(*self._game)
        if fresh is None:
            return False
        now = ale.cloneState(include_rng=True)
        written = serialized(now)
        if written[_SETTINGS] != fresh[_SETTINGS]:
            return False
        if self._noops:
            # A reset clears the sticky action, which a state does not contain. An ended game
            # emulates no frames but still records actions.
            for _ in range(self._noops):
                ale.act(self._noop)
            ale.restoreState(now)
        # A reset clears the game's frame count, then increases both counts: some modes need frames
        # with the select switch pressed.
        total = _FRAME_COUNTS.unpack_from(written)[0] + _FRAME_COUNTS.unpack_from(fresh)[1]
        ale.restoreState(load_ale().ALEState(_with_frame_number(fresh, total)))
        return True


@functools.cache
def state_after_reset(rom: str, mode: int | None, difficulty: int | None) -> bytes | None:
    """Return the state after every reset of the game, None if it varies; this takes 100 ms."""
    ale = load_ale().ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(rom)
    if mode is not None:
        ale.setMode(mode)
    if difficulty is not None:
        ale.setDifficulty(difficulty)
    rng = np.random.default_rng(0)
    actions = ale.getMinimalActionSet()

    ale.reset_game()
    fresh = ale.cloneState()
    state = serialized(fresh)
    after = _watch(ale, actions)
    for trial in range(_TRIALS):
        for action in rng.integers(len(actions), size=_TRIAL_STEPS):
            for _ in range(4):
                ale.act(actions[action])
        for place in range(ale.getRAMSize() if trial else 0):
            ale.setRAM(place, int(rng.integers(256)))
        ale.reset_game()
        if _comparable(serialized(ale.cloneState())) != _comparable(state):
            return None
        if trial:
            ale.act(actions[-1])
            ale.restoreState(fresh)
        if _watch(ale, actions) != after:
            return None
    return state


def serialized(state: Any) -> bytes:
    # Before ale-py 0.12, `serialize` decodes these bytes as text; `__getstate__` does not.
    pickled = state.__getstate__()
    written: bytes = pickled[0] if isinstance(pickled, tuple) else pickled
    return written


def _watch(ale: Any, actions: Sequence[Any]) -> list[bytes]:
    """Play some frames and return everything observable."""
    seen = []
    for frame in range(_WATCHED_FRAMES):
        reward = ale.act(actions[frame % len(actions)])
        seen += [ale.getScreen().tobytes(), ale.getRAM().tobytes(), b"%d" % reward]
    return [*seen, _comparable(serialized(ale.cloneState()))]


def _comparable(state: bytes) -> bytes:
    """Return the part of a state that must be equal after every reset."""
    return _GENERATOR.sub(b"", _with_frame_number(state, 0), count=1)


def _with_frame_number(state: bytes, number: int) -> bytes:
    return state[: _FRAME_NUMBER.start] + struct.pack("=i", number) + state[_FRAME_NUMBER.stop :]
