"""Selection of the parts of an observation space."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from xuance_envs.engine.data.space_layout import Leaf, SpaceLayout
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.record_layout import ObservationRecord
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.wrapper import checked_vec_env


def select_leaves(
    name: str, vec_env: VecEnv, keys: Iterable[str] | None, *, no_images: bool = False
) -> dict[int, Leaf]:
    """Return the selected leaves by index; raise unless all are Boxes of numbers."""
    space = check_single_agent(name, vec_env).observation_space
    layout = SpaceLayout(space)
    if isinstance(space, spaces.Dict):
        wanted = list(space.spaces) if keys is None else list(keys)
        if not (wanted and set(wanted) <= space.spaces.keys()):
            raise ValueError(f"{name}: keys: expected some of {list(space.spaces)}, got {wanted}")
    elif keys is not None:
        raise ValueError(f"{name}: keys requires a Dict observation space, got {space}")
    elif not layout.flat:
        raise ValueError(f"{name}: expected observations in a Box or Dict space, got {space}")
    else:
        wanted = []
    chosen = {
        i: leaf
        for i, leaf in enumerate(layout.leaves)
        if layout.flat or any(leaf.path.startswith(f"[{key!r}]") for key in wanted)
    }
    for leaf in chosen.values():
        where = f" under {leaf_name(leaf)!r}" if leaf.path else ""
        choose = "; select other keys with keys=[...]" if leaf.path else ""
        if not isinstance(leaf.space, spaces.Box) or leaf.space.dtype.kind not in "iuf":
            raise ValueError(
                f"{name}: expected observations{where} in a Box of numbers, "
                f"got {leaf.space}{choose}"
            )
        if no_images and leaf.dtype == np.uint8 and len(leaf.shape) > 1:
            raise ValueError(
                f"{name}: expected observations{where} other than images, got {leaf.space}: divide "
                f"images by 255 instead of normalizing them{choose}"
            )
    return chosen


def leaf_name(leaf: Leaf) -> str:
    """Return a leaf's keys joined by dots; an empty string for a space that is one Box."""
    return ".".join(re.findall(r"""[^\[\]'"]+""", leaf.path))


def check_single_agent(name: str, vec_env: VecEnv) -> VecEnv:
    """Return the vectorized environment if it is single-agent."""
    given: Any = vec_env
    within = given.vec_env if isinstance(given, MultiAgentVecEnv) else given
    if isinstance(within, VecEnv) and isinstance(within.observation_space, ObservationRecord):
        raise TypeError(
            f"{name}: expected environments with one agent each, got multi-agent ones: use "
            f"{name}(from_gymnasium(per_agent_rows(envs))), where each agent is one row, or wrap "
            "each environment in its env_fn"
        )
    return checked_vec_env(name, vec_env)
