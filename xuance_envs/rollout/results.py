"""Results of rollouts, their advantages, and the joining of several collectors' results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import ASKED, ActionLayout, Agent, checked_answer
from xuance_envs.rollout.state_layout import StateLayout

RESULTS = (
    *("states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"),
    *("end_states", "ep_counts", "total_return", "action_masks"),
)
"""Attributes that a rollout sets."""

STACKED = ("actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags")
"""Results with one row per step, without the states."""

_AXIS = {**dict.fromkeys(STACKED, 1), "ep_counts": 0}
_STATE_AXIS = {"states": 1, "t_states": 0, "end_states": 0}
"""Axis of the environments in each result."""


class RolloutResults:
    """The tensors of the last rollout, described in the collectors' attributes."""

    agent: Agent
    num_envs: int
    steps_per_env: int
    device: torch.device
    _action_layout: ActionLayout
    _reward_shape: tuple[int, ...]
    states: Any
    actions: torch.Tensor
    rewards: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    done_flags: torch.Tensor
    trunc_flags: torch.Tensor
    end_states: Any
    ep_counts: torch.Tensor
    total_return: Any
    action_masks: torch.Tensor | None

    _results: tuple[str, ...] = RESULTS

    def __repr__(self) -> str:
        steps = f"num_envs={self.num_envs}, steps_per_env={self.steps_per_env}"
        return f"{type(self).__name__}({steps}, agent={type(self.agent).__name__})"

    def drop_results(self) -> None:
        """Discard the last rollout."""
        for name in self._results:
            self.__dict__.pop(name, None)

    def advantages(self, gamma: float, gae_lambda: float) -> torch.Tensor:
        """Compute generalized advantage estimates (GAE) of the last rollout.

        Truncated and unfinished episodes are bootstrapped from the value of their last state;
        terminated episodes are not, even if they are also truncated. The agent computes the values
        of all ``end_states`` in one call, so call this method before you update the agent. If the
        agent keeps a memory per environment, as recurrent agents do, compute these values yourself
        and pass them to :func:`~xuance_envs.rollout.advantages.generalized_advantages`.

        Args:
            gamma: discount factor per step, from 0 to 1.
            gae_lambda: GAE's lambda: 0 for one-step advantages, 1 for the full segment.

        Returns:
            ``(T, N)`` float32; for vector rewards ``(T, N, k)``, computed for each component.
            Advantages plus ``values`` are the value targets.

        Raises:
            RuntimeError: there is no rollout yet.
            ValueError: ``gamma`` or ``gae_lambda`` is not from 0 to 1, or the agent's outputs are
                invalid.
        """
        count = self._num_segments()
        with torch.no_grad():
            masks = self.action_masks  # only values are used: allow all actions
            given = {} if masks is None else {"masks": masks.new_ones(count, masks.shape[2])}
            answer = self.agent.get_actions_and_values(self.end_states, actions=None, **given)
            shapes = self._action_layout.shape, self._reward_shape
            values = checked_answer(answer, (count,), *shapes, self.device)[2]
            terminated = self.done_flags.bool()
            return generalized_advantages(
                self.rewards,
                self.values,
                terminated,
                terminated | self.trunc_flags.bool(),
                check_end_values(values).to(self.values.dtype),
                gamma,
                gae_lambda,
            )

    def _num_segments(self) -> int:
        if "ep_counts" not in self.__dict__:
            raise RuntimeError("advantages: there is no rollout yet; call rollout first")
        return int(self.ep_counts.sum())


def total_return_of(rewards: NDArray[Any], reward_shape: tuple[int, ...]) -> Any:
    """Return the float32 sum of all rewards, or one sum per component of vector rewards."""
    return np.float32(rewards.reshape(-1, *reward_shape).sum(axis=0, dtype=np.float64))


def check_end_values(values: torch.Tensor) -> torch.Tensor:
    """Return the values of ``end_states``; raise if one is NaN."""
    if torch.isnan(values).any():
        raise ValueError(f"{ASKED}: values of end_states: expected numbers, got NaN")
    return values


class RolloutJoiner:
    """Joiner of several collectors' results, in the order of their environments."""

    def __init__(
        self, layout: StateLayout, reward_shape: tuple[int, ...], device: torch.device
    ) -> None:
        self._layout = layout
        self._reward_shape = reward_shape
        self._device = device

    def results(self, played: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        by_name = {name: [found[name] for found in played] for name in played[0]}
        results: dict[str, Any] = {
            **{name: self._joined(by_name[name], axis) for name, axis in _AXIS.items()},
            **{name: self.states(by_name[name], axis) for name, axis in _STATE_AXIS.items()},
        }
        for part in self._layout.parts(results["states"]):
            part.requires_grad_(part.is_floating_point())
        masks = by_name["action_masks"]
        without = [number for number, each in enumerate(masks) if each is None]
        if without and len(without) < len(masks):
            raise ValueError(
                "action_masks: expected action masks from all environments or from none, got none "
                f"from those of collector {without[0]}"
            )
        results["action_masks"] = None if without else self._joined(masks, 1)
        rewards = np.concatenate(by_name["rewards"], 1)
        return {**results, "total_return": total_return_of(rewards, self._reward_shape)}

    def states(self, by_collector: Iterable[Sequence[Any]], axis: int) -> Any:
        by_part = zip(*by_collector, strict=True)
        return self._layout.whole([self._joined(parts, axis) for parts in by_part])

    def _joined(self, arrays: Iterable[Any], axis: int) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(arrays), axis)).to(self._device)
