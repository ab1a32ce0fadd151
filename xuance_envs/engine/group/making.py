"""Creation of a group, of the kind that fits its environments."""

from __future__ import annotations

from typing import Any

from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import is_asynchronous


def make_group(recipe: Recipe, *args: Any, **kwargs: Any) -> ResumableGroup:
    """Create environments and their group; the arguments are those of :class:`ResumableGroup`."""
    group = ResumableGroup(recipe, *args, **kwargs)
    if not any(map(is_asynchronous, group.envs)):
        return group
    from xuance_envs.engine.group.async_group import AsyncGroup  # imports asyncio

    return AsyncGroup(recipe, *args, **kwargs, envs=group.envs)
