"""Transforms (vector wrappers): each is a ``VecEnv`` around a ``VecEnv``, so they stack.

For a custom transform, derive from :class:`~xuance_envs.transforms.transform.Transform`, or from
one of its subclasses for observations, rewards and actions.
"""

from xuance_envs.transforms.actions import ActionTransform, ClipActions, RescaleActions
from xuance_envs.transforms.episodes import EpisodeStatistics
from xuance_envs.transforms.normalize_observations import NormalizeObservations
from xuance_envs.transforms.normalize_rewards import NormalizeRewards
from xuance_envs.transforms.observations import ObservationTransform, TransformObservations
from xuance_envs.transforms.rewards import (
    ClipRewards,
    RewardTransform,
    ScalarizeRewards,
    ScaleRewards,
    TransformRewards,
)
from xuance_envs.transforms.stacking import StackObservations
from xuance_envs.transforms.transform import Transform

__all__ = [
    "ActionTransform",
    "ClipActions",
    "ClipRewards",
    "EpisodeStatistics",
    "NormalizeObservations",
    "NormalizeRewards",
    "ObservationTransform",
    "RescaleActions",
    "RewardTransform",
    "ScalarizeRewards",
    "ScaleRewards",
    "StackObservations",
    "Transform",
    "TransformObservations",
    "TransformRewards",
]
