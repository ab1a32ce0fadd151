"""Checkpoints of Gymnasium's LunarLander, restored by replay; refusal of other Box2D environments.

A Box2D world does not expose its impulses, timers or contact order. LunarLander creates a new world
at each reset. The state of the random generator before the reset, and the actions after it,
determine that world. A recorder stores them, and the numbers and plain data in the environment's
attributes before the reset. The other environments keep one world over all resets, so they are
refused.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, type_phrase
from xuance_envs.state.handlers import NATIVE, Handler
from xuance_envs.state.rebuild import seeded_generator
from xuance_envs.state.values.functions import functions_of_class
from xuance_envs.state.values.graph import ATOMIC, node
from xuance_envs.state.values.seeds import seed_parameters_of

_LOG = "_replay"
_OUTCOMES = frozenset({"prev_shaping", "game_over"})

REPLAYED_CLASS = "gymnasium.envs.box2d.lunar_lander.LunarLander"
"""Class of environments that are saved as replays."""


@functools.cache
def _replayed_names(kind: Any) -> frozenset[str]:
    """Return the names of the attributes that Gymnasium's code uses, and so a replay restores."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("gymnasium.")]
    codes = [f.__code__ for base in bases for _, f in functions_of_class(base)]
    return frozenset(name for code in codes for name in code.co_names)


def _is_data(value: Any) -> bool:
    kind: Any = type(value)
    if kind is dict:
        return all(map(_is_data, [*value, *value.values()]))
    if kind in (list, tuple, set, deque):
        return all(map(_is_data, value))
    return kind in ATOMIC or (kind is np.ndarray and not value.dtype.hasobject)


def _attributes(env: Any) -> dict[str, Any]:
    """Return copies of the numbers, strings and None, and of other data of subclasses."""
    kind: Any = type(env)
    replayed = _replayed_names(kind)
    return {
        name: value if type(value) in ATOMIC else copy.deepcopy(value)
        for name, value in vars(env).items()
        if type(value) in ATOMIC or (name not in replayed and _is_data(value))
    }


def _set_attributes(env: Any, attributes: dict[str, Any]) -> None:
    kind: Any = type(env)
    own = vars(env)
    for name, value in attributes.items():
        if name not in own or type(own[name]) in ATOMIC or name not in _replayed_names(kind):
            own[name] = value


class Box2DRecorder:
    """Recorder of an episode's start and actions."""

    __env_state__ = None

    def __init__(self, env: Any) -> None:
        self.episode_start: Any = None
        self.actions: list[Any] = []
        self.attributes: dict[str, Any] = {}
        self.reset, self.step = env.reset, env.step
        self._is_resetting = False
        self._env = env
        env.reset, env.step = self._reset, self._step
        setattr(env, _LOG, self)

    def _reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        generator, attributes = self._env._np_random, _attributes(self._env)
        if generator is not None:
            bits = generator.bit_generator
            generator = type(bits).__name__, bits.state, seed_parameters_of(bits.seed_seq)
        episode_start = generator, self._env._np_random_seed, seed, copy.deepcopy(options)
        self._is_resetting = True  # a reset may call `step`
        try:
            result = self.reset(seed=seed, options=options)
        finally:
            self._is_resetting = False
        self.episode_start, self.actions, self.attributes = episode_start, [], attributes
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
    now = _attributes(env)
    before = now if recorder.episode_start is None else recorder.attributes
    return recorder.episode_start, list(recorder.actions), env._np_random, (before, now)


def _check(env: Any, value: Any) -> None:
    _recorder_of(env)
    episode_start, actions, _, *attributes = value
    kinds = [type(each) for pair in attributes for each in pair]
    is_valid = isinstance(actions, list) and kinds in ([], [dict, dict])
    if not is_valid or not (episode_start is None or len(episode_start) == 4):
        raise FaultError(
            "",
            "expected an episode's start (four values or None), a list of actions and two dicts of "
            f"attributes, got {type_phrase(episode_start)}, {type_phrase(actions)} and {kinds}",
        )


def _load(env: Any, value: Any, _: Any) -> None:
    episode_start, actions, generator, *attributes = value
    before, now = attributes[0] if attributes else ({}, {})  # states of 0.3.0 have none
    recorder = _recorder_of(env)
    _set_attributes(env, copy.deepcopy(before))
    if episode_start is None:
        recorder.episode_start, recorder.actions = None, []
    else:
        first, seed_before, seed, options = episode_start
        # Assigning the public `np_random` would set the seed to -1.
        env._np_random = seeded_generator(*first) if type(first) is tuple else first
        env._np_random_seed = seed_before
        env.reset(seed=seed, options=options)
        for action in actions:
            env.step(action)
    _check_replay(env, now)
    _set_attributes(env, now)
    env._np_random = generator


def _check_replay(env: Any, expected: dict[str, Any]) -> None:
    """Raise if the replay led to another world; the reward's potential depends on all of it."""
    for name in _OUTCOMES & expected.keys():
        found, saved = vars(env).get(name), expected[name]
        if node(found).head != node(saved).head:
            raise FaultError(
                f"{type(env).__qualname__}.{name}",
                "a Box2D world is saved as the actions of its episode, and repeating them gave "
                f"{found!r} instead of {saved!r}: something else changed the environment",
            )


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
