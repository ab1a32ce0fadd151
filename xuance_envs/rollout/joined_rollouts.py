"""Rollouts of several collectors, joined into the tensors of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from xuance_envs.engine.data.space_layout import shape_of_rewards
from xuance_envs.rollout.collector_actor import STACKED
from xuance_envs.rollout.results import total_return_of
from xuance_envs.rollout.state_layout import StateLayout

_AXIS = {**dict.fromkeys(STACKED, 1), "ep_counts": 0}
_STATE_AXIS = {"states": 1, "t_states": 0, "end_states": 0}
"""Axis of the environments in each result."""


class RolloutJoiner:
    """Joins results of collectors that have consecutive environments.

    Args:
        layout: layout of the states.
        reward_space: the environments' reward space, or None.
        device: device of the tensors.
    """

    def __init__(
        self, layout: StateLayout, reward_space: Space[Any] | None, device: torch.device
    ) -> None:
        self._layout = layout
        self._reward_shape = shape_of_rewards(reward_space)
        self._device = device

    def results(self, played: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Join one rollout of all collectors."""
        results: dict[str, Any] = {
            name: self._joined([found[name] for found in played], axis)
            for name, axis in _AXIS.items()
        }
        for name, axis in _STATE_AXIS.items():
            results[name] = self.states([found[name] for found in played], axis)
        for part in self._layout.parts(results["states"]):
            part.requires_grad_(part.is_floating_point())
        masks = [found["action_masks"] for found in played]
        results["action_masks"] = None if any(m is None for m in masks) else self._joined(masks, 1)
        rewards = np.concatenate([found["rewards"] for found in played], 1)
        return {**results, "total_return": total_return_of(rewards, self._reward_shape)}

    def states(self, by_collector: Iterable[Sequence[Any]], axis: int) -> Any:
        by_part = zip(*by_collector, strict=True)
        return self._layout.whole([self._joined(parts, axis) for parts in by_part])

    def _joined(self, arrays: Iterable[Any], axis: int) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(arrays), axis)).to(self._device)
