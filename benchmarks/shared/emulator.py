"""Bare loops over the Atari emulator: the upper bound for Atari games.

A step makes the emulator play four frames and return the two screens for pooling. There is no
scaling, stacking, observation or info. A finished game is reset, with the same no-ops as in all
implementations.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms

from xuance_envs.gym.atari_games import full_id
from xuance_envs.measure import sample_actions

NOOP_MAX = 30
FIRE_FRAMES = 4


class EmulatorLoop:
    """Several copies of one game, played in series."""

    def __init__(self, env_id: str, actions: Iterable[Sequence[Any]], num_envs: int) -> None:
        game = gymnasium.spec(full_id(env_id)).kwargs["game"]
        self._emulators = [load(game, seed) for seed in range(num_envs)]
        names = self._emulators[0].getMinimalActionSet()
        self._fire = ale_py.Action.FIRE if ale_py.Action.FIRE in names else None
        self._actions = itertools.cycle([[names[number] for number in row] for row in actions])
        self._rng = np.random.default_rng(0)
        height, width = self._emulators[0].getScreenDims()
        self._screens = np.empty((2, height, width), np.uint8)

    def run(self, steps: int) -> float:
        calls = [
            (ale.act, ale.getScreenGrayscale, ale.game_over, ale.lives, index)
            for index, ale in enumerate(self._emulators)
        ]
        rows = itertools.islice(self._actions, steps)
        first, last = self._screens
        start = time.perf_counter()
        for row in rows:
            for (act, grab, is_over, lives, index), action in zip(calls, row):  # noqa: B905  # strict=True is slower
                act(action)
                act(action)
                act(action)
                grab(first)
                act(action)
                grab(last)
                lives()
                if is_over():
                    self._start(index)
        return time.perf_counter() - start

    def close(self) -> None:
        self._emulators.clear()

    def _start(self, index: int) -> None:
        ale = self._emulators[index]
        ale.reset_game()
        for _ in range(self._rng.integers(NOOP_MAX + 1)):
            ale.act(ale_py.Action.NOOP)
        if self._fire is not None:
            for _ in range(FIRE_FRAMES):
                ale.act(self._fire)


def load(game: str, seed: int) -> Any:
    """Return an emulator at the start of a game."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return ale


def emulator_loop(env_id: str, num_envs: int, low: int, high: int) -> EmulatorLoop:
    """Return a loop over some of the games, with their actions."""
    with gymnasium.make(full_id(env_id)) as env:
        actions = sample_actions(env.action_space, num_envs)
    return EmulatorLoop(env_id, [row[low:high] for row in actions], high - low)
