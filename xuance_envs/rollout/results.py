"""What a rollout leaves behind, and what follows from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import ASKED, ActionLayout, Agent, checked_answer

__all__ = ["RESULTS", "RolloutResults", "checked_ends"]


RESULTS = (
    *("states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"),
    *("end_states", "ep_counts", "total_return", "action_masks"),
)
"""The attributes that a rollout leaves behind."""


class RolloutResults:
    """The tensors of the last rollout: see the collectors' attributes."""

    agent: Agent
    device: torch.device
    _action_layout: ActionLayout
    states: Any
    actions: torch.Tensor
    rewards: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    done_flags: torch.Tensor
    trunc_flags: torch.Tensor
    end_states: Any
    ep_counts: torch.Tensor
    total_return: np.float32
    action_masks: torch.Tensor | None

    _results: tuple[str, ...] = RESULTS

    def drop_results(self) -> None:
        """Forgets the last rollout."""
        for name in self._results:
            self.__dict__.pop(name, None)

    def advantages(self, gamma: float, gae_lambda: float) -> torch.Tensor:
        """Generalized advantage estimates of the last rollout's actions.

        The agent is asked for the values of ``end_states``, so this comes before it learns.
        An episode that was truncated, or is not over, is bootstrapped from the value of its last
        state; one that was terminated is not, even if it was truncated as well.

        Args:
            gamma: the discount per step.
            gae_lambda: 0 looks one step ahead, 1 to the end of the segment.

        Returns:
            ``(T, N)`` float32. Added to ``values``, they are what values should have been.

        Raises:
            RuntimeError: there has been no rollout yet.
            ValueError: the agent's answer is not in order.
        """
        count = self._count_of_ends()
        with torch.no_grad():
            given = {}
            if self.action_masks is not None:  # only values are wanted, so that all is allowed
                given["masks"] = self.action_masks.new_ones(count, self.action_masks.shape[2])
            answer = self.agent.get_actions_and_values(self.end_states, actions=None, **given)
            values = checked_answer(answer, (count,), self._action_layout.shape, self.device)[2]
            terminated = self.done_flags.bool()
            return generalized_advantages(
                self.rewards,
                self.values,
                terminated,
                terminated | self.trunc_flags.bool(),
                checked_ends(values).to(self.values.dtype),
                gamma,
                gae_lambda,
            )

    def _count_of_ends(self) -> int:
        """How many last states there are."""
        if "ep_counts" not in self.__dict__:
            raise RuntimeError("advantages are those of a rollout: call rollout first")
        return int(self.ep_counts.sum())


def checked_ends(values: torch.Tensor) -> torch.Tensor:
    """The values of last states, if they are numbers."""
    if torch.isnan(values).any():
        raise ValueError(f"{ASKED}: values of end_states: got NaN")
    return values
