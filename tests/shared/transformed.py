"""Vector environments within transforms."""

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
    """Has the infos as they were."""

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


def stacked(envs: VecEnv) -> VecEnv:
    for name in ("NormalizeRewards", "TransformObservations", "VecEnvWrapper", "TransformRewards"):
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
"""By name, what wraps a vector environment in a transform that leaves it as it is."""


BEYOND = {
    (
        "NormalizeObservations",
        "test_step_observations_are_cast_to_the_spaces_dtype_where_they_fit",
    ): ("NaN is an observation there"),
    ("ClipActions", "test_actions_values_outside_the_space_are_the_environments_business"): (
        "there are none"
    ),
    (
        "ClipActions",
        "test_actions_check_actions_refuses_values_outside_the_space",
    ): "there are none",
}
"""Tests that are not for a transform, and why."""


def within(name: str, backend: Backend) -> Backend:
    """A backend whose vector environments are within a transform without effect.

    Args:
        name: of the transform.
        backend: what steps the environments.
    """
    wrap = WITHOUT_EFFECT[name]

    def kind(*args: Any, **options: Any) -> VecEnv:
        envs = backend.kind(*args, **options)
        try:
            return wrap(envs)
        except (AttributeError, ValueError) as error:
            envs.close()
            pytest.skip(f"{name} is not for such environments: {error}")

    return Backend(f"{name}-{backend}", kind, backend.options, backend.together, backend.here)
