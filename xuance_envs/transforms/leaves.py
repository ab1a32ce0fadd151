"""What a transform is about: environments of one agent, and which parts of observations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from xuance_envs.engine.data.space_layout import Leaf, SpaceLayout
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.record_layout import ObservationRecord
from xuance_envs.vector_envs.vector_env import VecEnv
from xuance_envs.vector_envs.wrapper import checked_vec_env

__all__ = ["check_single_agent", "leaf_name", "replace_leaves", "select_leaves"]


def select_leaves(
    name: str, vec_env: VecEnv, keys: Iterable[str] | None, *, no_images: bool = False
) -> dict[int, Leaf]:
    """The Boxes of numbers that a transform is about, by their place among the leaves."""
    space = check_single_agent(name, vec_env).observation_space
    layout = SpaceLayout(space)
    if isinstance(space, spaces.Dict):
        wanted = list(space.spaces) if keys is None else list(keys)
    elif keys is not None:
        raise ValueError(f"{name}: keys: expected them for a Dict space only, got {space}")
    elif not layout.flat:
        raise ValueError(f"{name}: expected observations of a Box or a Dict space, got {space}")
    else:
        wanted = []
    if isinstance(space, spaces.Dict) and not (wanted and set(wanted) <= space.spaces.keys()):
        raise ValueError(f"{name}: keys: expected some of {list(space.spaces)}, got {wanted}")
    chosen = {
        i: leaf
        for i, leaf in enumerate(layout.leaves)
        if layout.flat or any(leaf.path.startswith(f"[{key!r}]") for key in wanted)
    }
    for leaf in chosen.values():
        where = f"of {leaf_name(leaf)!r} " if leaf.path else ""
        choose = "; choose others with keys=[...]" if leaf.path else ""
        if not isinstance(leaf.space, spaces.Box) or leaf.space.dtype.kind not in "iuf":
            raise ValueError(
                f"{name}: expected observations {where}in a Box of numbers, "
                f"got {leaf.space}{choose}"
            )
        if no_images and leaf.dtype == np.uint8 and len(leaf.shape) > 1:
            raise ValueError(
                f"{name}: expected observations {where}that are no images, got {leaf.space}: "
                f"statistics of single pixels say little; divide images by 255 instead{choose}"
            )
    return chosen


def leaf_name(leaf: Leaf) -> str:
    """The name of a leaf: its keys with dots between; empty for the one leaf of a flat space."""
    return ".".join(re.findall(r"""[^\[\]'"]+""", leaf.path))


def replace_leaves(
    space: Space[Any], others: Mapping[str, Space[Any]], path: str = ""
) -> Space[Any]:
    """The space with other leaves in the places of some."""
    if path in others:
        return others[path]
    if isinstance(space, spaces.Dict):
        inner = space.spaces.items()
        return spaces.Dict({k: replace_leaves(s, others, f"{path}[{k!r}]") for k, s in inner})
    if isinstance(space, spaces.Tuple):
        below = enumerate(space.spaces)
        return spaces.Tuple([replace_leaves(s, others, f"{path}[{i!r}]") for i, s in below])
    return space


def check_single_agent(name: str, vec_env: VecEnv) -> VecEnv:
    """The vector environment, if its environments have one agent each."""
    given: Any = vec_env
    within = given.vec_env if isinstance(given, MultiAgentVecEnv) else given
    if isinstance(within, VecEnv) and isinstance(within.observation_space, ObservationRecord):
        raise TypeError(
            f"{name}: expected environments with one agent each, got ones with many: put what is "
            "for each agent around from_gymnasium(per_agent_rows(envs)), where each row is one, or "
            "around each environment, in the function that makes it"
        )
    return checked_vec_env(name, vec_env)
