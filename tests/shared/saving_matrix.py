"""Environments of all kinds, saved in one vectorized environment and continued in another."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from backends import Backend
from comparing import assert_same
from example_envs import EchoEnv
from gymnasium import spaces
from stateful_envs import MAKERS

from xuance_envs import Atari_Env, EnvStates, Gym_Env

N, BEFORE, AFTER = 4, 23, 60

_BOX = spaces.Box(-1, 1, (2,), np.float32)
_WORDS = functools.partial(
    spaces.Text, charset="abcdefgh"
)  # a set's order differs between processes
SPACES: dict[str, spaces.Space[Any]] = {
    "text": _WORDS(5),
    "graph": spaces.Graph(_BOX, None),
    "dict": spaces.Dict({"b": _BOX, "a": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.MultiBinary(3), spaces.Dict({"text": _WORDS(3)}))),
    "sequence": spaces.Sequence(_BOX),
}


def limited(env_id: str) -> Any:
    """Create an environment with short episodes."""
    return gymnasium.make(env_id, max_episode_steps=17)


def game(**how: Any) -> Any:
    return Atari_Env("Breakout", max_num_frames_per_episode=120, **{"image_size": 84, **how})


def raw_game() -> Any:
    gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.make("ALE/Pong-v5", max_num_frames_per_episode=120)


def with_space(name: str) -> Any:
    return EchoEnv(SPACES[name])


def makers() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = dict(MAKERS)
    for name in SPACES:
        found[f"space {name}"] = functools.partial(with_space, name)
    if importlib.util.find_spec("ale_py") and importlib.util.find_spec("cv2"):
        found["atari"] = game
        found["atari, memory"] = functools.partial(game, obs_type="ram", image_size=None)
        found["atari, colours"] = functools.partial(game, obs_type="rgb", frame_skip=(2, 5))
        found["atari, ale-py's own"] = raw_game
    if importlib.util.find_spec("gym"):
        for env_id in ("CartPole-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1"):
            found[f"gym {env_id}"] = functools.partial(
                Gym_Env, env_id, library="gym", max_episode_steps=17
            )
    return found


def actions_for(env: Any, steps: int) -> list[list[Any]]:
    space = copy.deepcopy(env.action_space)
    space.seed(3)
    return [[space.sample() for _ in range(N)] for _ in range(steps)]


def played(envs: Any, actions: list[list[Any]]) -> tuple[list[Any], int]:
    found, ends = [], 0
    for each in actions:
        obs, rewards, terminated, truncated, infos = envs.step(each)
        found.append((obs, rewards, terminated, truncated, list(infos), envs.exact_rewards))
        ends += int((terminated | truncated).sum())
    return found, ends


def goes_on(make: Callable[[], Any], saved_in: Backend, loaded_in: Backend) -> int:
    """Raise unless the results continue identically; return the number of episode ends."""
    fns = [make] * N
    with (
        saved_in.kind(fns, **saved_in.options) as envs,
        loaded_in.kind(fns, **loaded_in.options) as others,
    ):
        envs.reset(seed=1)
        others.reset(seed=50)
        actions = actions_for(envs, BEFORE + AFTER)
        played(envs, actions[:BEFORE])
        played(others, actions[:3])
        state = EnvStates.from_bytes(envs.save_state().to_bytes(), trusted=True)
        expected, ends = played(envs, actions[BEFORE:])
        others.load_state(state)
        assert_same(played(others, actions[BEFORE:])[0], expected)
    return ends
