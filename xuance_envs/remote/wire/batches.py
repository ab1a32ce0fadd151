"""Batches in messages: values of a space, one per environment.

A batch has the structure of its space: a dict for Dict, a list for Tuple, an array with an
additional first axis for Box, Discrete, MultiDiscrete and MultiBinary, and a list of values for
other spaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from xuance_envs.remote.wire.arrays import array_from_wire
from xuance_envs.remote.wire.nodes import WireError, checked_list, shortened
from xuance_envs.remote.wire.values import from_wire, to_wire

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def batch_to_wire(space: Space[Any], batch: Any) -> Any:
    if isinstance(space, _ARRAY_SPACES):
        return np.asarray(batch)
    if isinstance(space, spaces.Dict):
        parts = [batch_to_wire(inner, batch[key]) for key, inner in space.spaces.items()]
        return dict(zip(space.spaces, parts, strict=True)) if _has_string_keys(space) else parts
    if isinstance(space, spaces.Tuple):
        return [batch_to_wire(inner, part) for inner, part in zip(space, batch, strict=True)]
    return [to_wire(value) for value in batch]


def batch_from_wire(
    space: Space[Any], node: Any, count: int, decode: Callable[[Any], Any] = from_wire
) -> Any:
    """Decode a batch of ``count`` values; the inverse of :func:`batch_to_wire`."""
    if isinstance(space, _ARRAY_SPACES):
        shape, dtype = space.shape, space.dtype
        assert shape is not None
        assert dtype is not None
        return array_from_wire(node, dtype, (count, *shape))
    if isinstance(space, spaces.Dict):
        parts = _dict_items(space, node)
        return {
            key: batch_from_wire(inner, part, count, decode)
            for (key, inner), part in zip(space.spaces.items(), parts, strict=True)
        }
    if isinstance(space, spaces.Tuple):
        parts = checked_list(node, len(space.spaces), "item", " for Tuple")
        return tuple(
            batch_from_wire(inner, part, count, decode)
            for inner, part in zip(space, parts, strict=True)
        )
    return list(map(decode, checked_list(node, count, "value", f" for {type(space).__name__}")))


def _has_string_keys(space: spaces.Dict) -> bool:
    return all(type(key) is str for key in space.spaces)


def _dict_items(space: spaces.Dict, node: Any) -> list[Any]:
    if _has_string_keys(space):
        if not isinstance(node, dict) or node.keys() != set(space.spaces):
            got = f"the keys {list(node)[:8]!a:.100}" if isinstance(node, dict) else shortened(node)
            raise WireError(f"expected the keys {list(space.spaces)!a} for Dict, got {got}")
        return [node[key] for key in space.spaces]
    return checked_list(node, len(space.spaces), "item", " for Dict")
