"""The lazily loaded names of this package and their modules."""

from xuance_envs.compat.as_gymnasium import to_gymnasium as to_gymnasium
from xuance_envs.compat.as_sb3 import to_sb3 as to_sb3
from xuance_envs.compat.native import from_gymnasium as from_gymnasium
