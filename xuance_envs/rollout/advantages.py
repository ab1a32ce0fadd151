"""Generalized advantage estimation."""

from __future__ import annotations

import torch

from xuance_envs.vector_envs.arguments import checked_fraction

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

    A segment is the part of an episode within the T steps. Each segment's advantages are computed
    separately and bootstrapped from the value of its last state. A terminated segment is not
    bootstrapped, even if it is also truncated.

    Args:
        rewards: ``(T, N)`` for T steps of N environments, or ``(T, N, k)`` for k components, each
            with its own advantages.
        values: values of the states before each step, in the shape of ``rewards``.
        terminated: ``(T, N)`` bool.
        ended: ``(T, N)`` bool: True at the last step of each segment; the last row is all True.
        end_values: values of the last states of the E segments, ``(E,)`` or ``(E, k)``, ordered by
            environment, then by time.
        gamma: discount factor per step, from 0 to 1.
        gae_lambda: GAE's lambda: 0 for one-step advantages, 1 for the full segment.

    Returns:
        The advantages, with the shape of ``rewards`` and the dtype of ``values``.

    Raises:
        ValueError: ``gamma`` or ``gae_lambda`` is not from 0 to 1.
    """
    checked_fraction("gamma", gamma)
    checked_fraction("gae_lambda", gae_lambda)
    next_values = torch.cat([values[1:], values[:1]])
    next_values.transpose(0, 1)[ended.t()] = end_values  # transposed: ordered by environment
    of_each_value = *ended.shape, *[1] * (values.ndim - ended.ndim)
    next_values.masked_fill_(terminated.reshape(of_each_value), 0.0)
    deltas = rewards + gamma * next_values - values
    segment_ends = ended.reshape(of_each_value)
    decays = gamma * gae_lambda * (~segment_ends).to(values.dtype)
    advantages = torch.empty_like(values)
    following = torch.zeros_like(values[0])
    for delta, decay, ends, out in zip(
        *(reversed(each.unbind()) for each in (deltas, decays, segment_ends, advantages)),
        strict=True,
    ):
        following = following.masked_fill(ends, 0.0)  # infinity times 0 would be NaN
        following = torch.addcmul(delta, decay, following, out=out)
    return advantages
