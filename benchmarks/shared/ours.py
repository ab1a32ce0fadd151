"""The backends of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.vector_envs.vector_env import VecEnv

WRAPPERS: dict[str, Callable[[str], Any]] = {"gym_env": Gym_Env, "gymnasium": gymnasium.make}
"""Single environments: this package's wrapper, or plain ``gymnasium.make``."""


@dataclass(frozen=True)
class Backend:
    """A backend: its title in tables, its maker, and the only wrapper it supports, if any."""

    title: str
    make: Callable[..., VecEnv]
    wrapper: str | None = None


BACKENDS = {
    "dummy": Backend("Dummy", DummyVecEnv_Gym),
    "dummy-bare": Backend("Dummy of gymnasium.make", DummyVecEnv_Gym, "gymnasium"),
    "subproc": Backend("Subproc", SubprocVecEnv_Gym),
    "caller": Backend("Subproc, caller_steps", partial(SubprocVecEnv_Gym, caller_steps=True)),
    "one-each": Backend("Subproc, in_series=1", partial(SubprocVecEnv_Gym, in_series=1)),
}


def make_ours(backend: Backend, wrapper: str, env_id: str, num_envs: int) -> VecEnv:
    """Make and reset the vectorized environment."""
    env_fn = partial(WRAPPERS[backend.wrapper or wrapper], env_id)
    vec_env = backend.make([env_fn] * num_envs)
    vec_env.reset(seed=0)
    return vec_env
