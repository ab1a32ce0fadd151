"""Public path of :class:`~xuance_envs.RemoteVecEnv`."""

from xuance_envs.remote.client.remote_driver import RemoteDriver
from xuance_envs.remote.client.remote_vec_env import RemoteVecEnv

__all__ = ["RemoteDriver", "RemoteVecEnv"]
