"""Vectorized environments in transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import Backend

from xuance_envs import transforms
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.wrapper import VecEnvWrapper

TINY = 1e-300
"""A number that changes nothing when it is added to a variance."""


def same(value: Any) -> Any:
    return value


class Untold(transforms.EpisodeStatistics):
    """Transform that leaves the infos unchanged."""

    def _transform(self, batch: Batch) -> Any:
        infos = batch.infos
        state = super()._transform(batch)
        batch.infos = infos
        return state


def frozen(kind: Callable[..., transforms.Transform]) -> Callable[[VecEnv], VecEnv]:
    def wrap(envs: VecEnv) -> VecEnv:
        if kind is transforms.NormalizeObservations and envs.observation_space.dtype != np.float32:
            raise ValueError("they become float32")
        transform = kind(envs, epsilon=TINY, clip=math.inf)
        transform.freeze()
        return transform

    return wrap


STACKED = (
    *("VecEnvWrapper", "TransformObservations"),
    *("NormalizeRewards", "TransformRewards", "ClipRewards", "ScaleRewards"),
)


def stacked(envs: VecEnv) -> VecEnv:
    for name in STACKED:
        envs = WITHOUT_EFFECT[name](envs)
    return envs


WITHOUT_EFFECT: dict[str, Callable[[VecEnv], VecEnv]] = {
    "VecEnvWrapper": VecEnvWrapper,
    "NormalizeObservations": frozen(transforms.NormalizeObservations),
    "NormalizeRewards": frozen(transforms.NormalizeRewards),
    "ClipRewards": lambda envs: transforms.ClipRewards(envs, -math.inf, math.inf),
    "ScaleRewards": lambda envs: transforms.ScaleRewards(envs, 1.0),
    "RescaleActions": lambda envs: transforms.RescaleActions(
        envs, envs.action_space.low, envs.action_space.high
    ),
    "ClipActions": transforms.ClipActions,
    "StackObservations": lambda envs: transforms.StackObservations(envs, 1),
    "TransformObservations": lambda envs: transforms.TransformObservations(
        envs, same, envs.observation_space
    ),
    "TransformRewards": lambda envs: transforms.TransformRewards(envs, same),
    "EpisodeStatistics": Untold,
    "stacked": stacked,
}
"""Wrappers and transforms without an effect, by name."""


BEYOND = {
    (
        "NormalizeObservations",
        "test_step_observations_are_cast_to_the_spaces_dtype_where_they_fit",
    ): ("NaN is a valid observation there"),
    ("ClipActions", "test_actions_values_outside_the_space_are_the_environments_business"): (
        "its action space is unbounded"
    ),
    (
        "ClipActions",
        "test_actions_check_actions_refuses_values_outside_the_space",
    ): "its action space is unbounded",
}
"""Contract tests that do not apply to a transform, with the reason."""


def within(name: str, backend: Backend) -> Backend:
    """Return a backend whose vectorized environments are in a transform without effect."""
    wrap = WITHOUT_EFFECT[name]

    def kind(*args: Any, **options: Any) -> VecEnv:
        envs = backend.kind(*args, **options)
        try:
            return wrap(envs)
        except (AttributeError, ValueError) as error:
            envs.close()
            pytest.skip(f"{name} does not support such environments: {error}")

    return Backend(f"{name}-{backend}", kind, backend.options, backend.together, backend.here)
