"""Starting a game over by restoring a state instead of emulating a reset.

A reset costs the emulator as much as a dozen steps: it lets the console run for a second before it
presses the reset switch. Most games are then in the same state every time, so that state can be
restored. But not all are: a game may read what the last one left in memory, or the console's timer,
whose first value differs from reset to reset. And of a few games a restored state is not all there
is. So a game is tried on an emulator of its own first, and where a single bit differs it is
always reset in full.
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

__all__ = ["FastReset", "serialized", "state_after_reset"]

# Where a serialized state has the number of frames in total and in this game, and then the mode and
# the difficulty.
_FRAME_NUMBER = slice(8, 12)
_SETTINGS = slice(16, 24)
_FRAME_COUNTS = struct.Struct("=8xii")

# The console's random generator, a Mersenne Twister, as text. The reset draws the timer from it and
# nothing else does, so it does not matter where it stands if the timer does not.
_GENERATOR = re.compile(rb"(?:\d+ ){624}\d+")

_TRIALS = 3
_TRIAL_STEPS = 30
_WATCHED_FRAMES = 12
_MAX_STICKY_PROBABILITY = 0.9
_NEGLIGIBLE_PROBABILITY = 1e-18


class FastReset:
    """Starts the game of one emulator over."""

    __env_state__ = None

    def __init__(self, ale: Any, rom: str, mode: int | None, difficulty: int | None) -> None:
        self._ale = ale
        self._game = rom, mode, difficulty
        self._noop = single_action("NOOP")
        sticky = float(ale.getFloat("repeat_action_probability"))
        self._is_possible = sticky <= _MAX_STICKY_PROBABILITY
        # So many no-ops, one of which is taken for certain.
        self._noops = (
            math.ceil(math.log(_NEGLIGIBLE_PROBABILITY) / math.log(sticky)) if 0 < sticky < 1 else 0
        )

    def restore(self) -> bool:
        """Bring the emulator, whose game has ended, to where a reset would bring it.

        All that a step can depend on or show is then as after a reset, the emulator's random
        generator and its count of frames included, but for the screen, which is not drawn before
        the next frame.
        """
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
            # A reset forgets the action that may be repeated, and a state does not hold it. An
            # ended game emulates no further frame, but takes note of actions.
            for _ in range(self._noops):
                ale.act(self._noop)
            ale.restoreState(now)
        # A reset starts one count of frames anew, and then adds to both: some modes take frames in
        # which the select switch is pressed.
        total = _FRAME_COUNTS.unpack_from(written)[0] + _FRAME_COUNTS.unpack_from(fresh)[1]
        ale.restoreState(load_ale().ALEState(_with_frame_number(fresh, total)))
        return True


@functools.cache
def state_after_reset(rom: str, mode: int | None, difficulty: int | None) -> bytes | None:
    """Return the state every reset leads to, serialized, if there is only one.

    The first call for a game takes some 100 ms, most of which is loading it.
    """
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
    """Return a state of the emulator as bytes."""
    # What it is pickled as, within a tuple or not: before 0.12 ale-py's own `serialize` takes these
    # bytes for text.
    pickled = state.__getstate__()
    written: bytes = pickled[0] if isinstance(pickled, tuple) else pickled
    return written


def _watch(ale: Any, actions: Sequence[Any]) -> list[bytes]:
    """Play on, and return all there is to see of it."""
    seen = []
    for frame in range(_WATCHED_FRAMES):
        reward = ale.act(actions[frame % len(actions)])
        seen += [ale.getScreen().tobytes(), ale.getRAM().tobytes(), b"%d" % reward]
    return [*seen, _comparable(serialized(ale.cloneState()))]


def _comparable(state: bytes) -> bytes:
    """Return what two states have to have in common, to be the same for a game."""
    return _GENERATOR.sub(b"", _with_frame_number(state, 0), count=1)


def _with_frame_number(state: bytes, number: int) -> bytes:
    return state[: _FRAME_NUMBER.start] + struct.pack("=i", number) + state[_FRAME_NUMBER.stop :]
