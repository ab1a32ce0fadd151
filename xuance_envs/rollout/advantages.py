"""Generalized advantage estimation."""

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
    """Compute advantages by GAE (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    Each segment is summed separately and bootstrapped from the value of its last state. A
    terminated segment is not bootstrapped, even if it is also truncated.

    Args:
        rewards: ``(T, N)``.
        values: ``(T, N)``, of the states before each step.
        terminated: ``(T, N)`` bool.
        ended: ``(T, N)`` bool: the last steps of segments, including the whole last row.
        end_values: ``(E,)``, of the segments' last states, ordered by environment, then by time.
        gamma: discount factor per step.
        gae_lambda: GAE's lambda: 0 for one-step advantages, 1 for the full segment.

    Returns:
        ``(T, N)``, with the dtype of ``values``.
    """
    next_values = torch.cat([values[1:], values[:1]])
    next_values.t()[ended.t()] = end_values  # transposed: ordered by environment
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
