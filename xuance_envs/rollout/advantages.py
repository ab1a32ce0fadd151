"""Advantages of the actions of a rollout."""

from __future__ import annotations

import torch

__all__ = ["generalized_advantages"]


def generalized_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    terminated: torch.Tensor,
    ended: torch.Tensor,
    end_values: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Generalized advantage estimation: Schulman et al. 2016, https://arxiv.org/abs/1506.02438.

    Each segment is a sum of its own. Behind its last step comes the value of its last state, and
    nothing where it was terminated, which counts for more than being truncated as well.

    Args:
        rewards: ``(T, N)``.
        values: ``(T, N)``, of the states that were acted in.
        terminated: ``(T, N)`` bool.
        ended: ``(T, N)`` bool: where a segment ends; all of the last row.
        end_values: ``(E,)``, of the last states of the segments, environment by environment, in
            time order within each.
        gamma: the discount per step.
        gae_lambda: 0 looks one step ahead, 1 to the segment's end.

    Returns:
        ``(T, N)``, of the dtype of the values.
    """
    next_values = torch.cat([values[1:], values[:1]])
    next_values.t()[ended.t()] = end_values  # transposed, the mask goes through them in their order
    next_values.masked_fill_(terminated, 0.0)
    deltas = rewards + gamma * next_values - values
    decays = gamma * gae_lambda * (~ended).to(values.dtype)
    advantages = torch.empty_like(values)
    following = torch.zeros_like(values[0])
    for delta, decay, out in zip(
        reversed(deltas.unbind()),
        reversed(decays.unbind()),
        reversed(advantages.unbind()),
        strict=True,
    ):
        following = torch.addcmul(delta, decay, following, out=out)
    return advantages
