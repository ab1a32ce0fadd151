"""Checkpoints of Gymnasium's LunarLander, restored by replay; refusal of other Box2D environments.

A Box2D world does not expose its impulses, timers or contact order. LunarLander creates a new world
at each reset. The state of the random generator before the reset, and the actions after it,
determine that world. A recorder stores them. The other environments keep one world over all resets,
so they are refused.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, type_phrase
from xuance_envs.state.handlers import NATIVE, Handler

_LOG = "_replay"

REPLAYED_CLASS = "gymnasium.envs.box2d.lunar_lander.LunarLander"
"""Class of environments that are saved as replays."""


class Box2DRecorder:
    """Recorder of an episode's start and actions."""

    __env_state__ = None

    def __init__(self, env: Any) -> None:
        self.episode_start: Any = None
        self.actions: list[Any] = []
        self.reset, self.step = env.reset, env.step
        self._is_resetting = False
        self._env = env
        env.reset, env.step = self._reset, self._step
        setattr(env, _LOG, self)

    def _reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        generator = self._env._np_random
        before = None if generator is None else generator.bit_generator.state
        episode_start = generator, before, self._env._np_random_seed, seed, copy.deepcopy(options)
        self._is_resetting = True  # a reset may call `step`
        try:
            result = self.reset(seed=seed, options=options)
        finally:
            self._is_resetting = False
        self.episode_start, self.actions = episode_start, []
        return result

    def _step(self, action: Any) -> Any:
        if self._is_resetting:
            return self.step(action)
        kept = action.copy() if type(action) is np.ndarray else action
        result = self.step(action)
        self.actions.append(kept)
        return result


def _recorder_of(env: Any) -> Box2DRecorder:
    recorder = vars(env).get(_LOG)
    if not isinstance(recorder, Box2DRecorder):
        raise FaultError(
            type(env).__qualname__,
            "a Box2D world is saved as the actions of its episode, which were "
            "not recorded: let a vectorized environment or check_saving create the environment",
        )
    return recorder


def _save(env: Any, _: Any) -> Any:
    recorder = _recorder_of(env)
    episode_start = recorder.episode_start
    if episode_start is not None:
        generator, state_before, *how = episode_start
        if generator is not None:
            generator = copy.deepcopy(generator)
            generator.bit_generator.state = state_before
        episode_start = generator, *how
    return episode_start, list(recorder.actions), env._np_random


def _check(env: Any, value: Any) -> None:
    _recorder_of(env)
    episode_start, actions, _ = value
    if not isinstance(actions, list) or not (episode_start is None or len(episode_start) == 4):
        raise FaultError(
            "",
            "expected an episode's start (four values or None) and a list of its actions, got "
            f"{type_phrase(episode_start)} and {type_phrase(actions)}",
        )


def _load(env: Any, value: Any, _: Any) -> None:
    episode_start, actions, generator = value
    recorder = _recorder_of(env)
    if episode_start is None:
        recorder.episode_start, recorder.actions = None, []
    else:
        # Assigning the public `np_random` would set the seed to -1.
        env._np_random, env._np_random_seed, seed, options = episode_start
        env.reset(seed=seed, options=options)
        for action in actions:
            env.step(action)
    env._np_random = generator


def _refuse(env: Any, _: Any) -> Any:
    raise FaultError(
        type(env).__qualname__,
        "its Box2D world is reused across resets and cannot be read, so no saved state would be "
        "exact",
    )


NATIVE[REPLAYED_CLASS] = Handler(_save, _load, _check, lambda env, _: ("Box2D", {}), replays=True)
_REFUSED = Handler(_refuse, lambda env, value, owner: None)
for _name in ("bipedal_walker.BipedalWalker", "car_racing.CarRacing", "lunar_lander.LunarLander"):
    for _library in ("gymnasium", "gym"):
        NATIVE.setdefault(f"{_library}.envs.box2d.{_name}", _REFUSED)
