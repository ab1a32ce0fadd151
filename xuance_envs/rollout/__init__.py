"""Rollouts of an agent in vectorized environments, as tensors. Requires the extra ``torch``."""

from xuance_envs.extras import missing_extra as _missing_extra

try:
    import torch as _torch  # noqa: F401  # to raise the error below, for all modules here
except ImportError as error:
    raise _missing_extra("xuance_envs.rollout", "torch", error) from error

from xuance_envs.rollout.collector import MultiAgentRolloutCollector, RolloutCollector
from xuance_envs.rollout.ray_collector import RayRolloutCollector
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.rollout.sync_vec_env import SyncVecEnv

__all__ = [
    "GifRecorder",
    "MultiAgentRolloutCollector",
    "RayRolloutCollector",
    "RolloutCollector",
    "SyncVecEnv",
]
