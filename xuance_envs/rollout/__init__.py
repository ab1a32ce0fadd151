"""Rollouts of an agent in vectorized environments, as torch tensors.

Requires the extra ``torch``; see :mod:`xuance_envs.rollout.collector`.
"""

try:
    import torch as _torch  # noqa: F401  # report what to install, for all modules of this package
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'xuance_envs.rollout requires {error.name}: pip install "xuance_envs[torch]"',
        name=error.name,
    ) from error

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
