"""What collectors share: layouts, results and advantages; and the joining of several results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import StepSpaces, shape_of_rewards
from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import ASKED, ActionLayout, Agent, AgentOutputs, checked_answer
from xuance_envs.rollout.episode_statistics import EpisodeHistory, EpisodeMetrics
from xuance_envs.rollout.loop_state import LoopState
from xuance_envs.rollout.state_layout import StateLayout
from xuance_envs.rollout.transfer import Transfer
from xuance_envs.vector_envs.aliases import ClosedOnExit, Uncopyable
from xuance_envs.vector_envs.options import AutoBool

STACKED = ("actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags")
"""Results with one row per step, without the states."""

RESULTS = ("states", *STACKED, "end_states", "ep_counts", "total_return", "action_masks")
"""Attributes that a rollout sets."""

STATES = {"states": 1, "t_states": 0, "end_states": 0}
"""Results that are states, and the axis of the environments in each."""


class RolloutResults(EpisodeMetrics, Uncopyable, ClosedOnExit):
    """The layouts and the last rollout's tensors, described in the collectors' attributes."""

    agent: Agent
    num_envs: int
    steps_per_env: int
    device: torch.device
    t_states: Any
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
    _team: tuple[int, ...] = ()

    def _set_spaces(
        self,
        spaces: StepSpaces,
        state_dtype: torch.dtype,
        channels_first: AutoBool,
        window: int,
        leading_axes: Sequence[int] = (),
    ) -> None:
        self.state_space, self.action_space, self.reward_space = spaces
        self._reward_shape = shape_of_rewards(self.reward_space)
        self._transfer = Transfer(self.device)
        self._layout = StateLayout(
            self.state_space, state_dtype, channels_first, self._transfer, leading_axes
        )
        self._action_layout = ActionLayout(self.action_space)
        self.statistics = EpisodeHistory(self.num_envs, window, self._reward_shape)
        self.state_shape: Any = self._layout.shape
        self.action_dtype = self._action_layout.dtype

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
        with torch.no_grad():
            last = check_end_values(self._end_values(self._num_segments(), self.end_states))
            terminated = self.done_flags.bool()
            played = self.rewards, self.values, terminated, terminated | self.trunc_flags.bool()
            return generalized_advantages(*played, last, gamma, gae_lambda)

    def _num_segments(self) -> int:
        if "ep_counts" not in self.__dict__:
            raise RuntimeError("advantages: there is no rollout yet; call rollout first")
        return int(self.ep_counts.sum())

    def _end_values(self, count: int, states: Any) -> torch.Tensor:
        """Return the agent's values of the last states of all segments."""
        masks = self.action_masks
        if masks is not None:  # only values are used: allow all actions
            masks = masks.new_ones(count, *masks.shape[2:])
        return self._agent_outputs(states, masks, count)[2].to(self.values.dtype)

    def _agent_outputs(self, states: Any, masks: torch.Tensor | None, count: int) -> AgentOutputs:
        answer = self._query(states, masks)
        shapes = (count, *self._team), self._action_layout.shape, self._reward_shape
        return checked_answer(answer, *shapes, self.device)

    def _query(self, states: Any, masks: torch.Tensor | None) -> Any:
        given = {} if masks is None else {"masks": masks}
        return self.agent.get_actions_and_values(states, actions=None, **given)

    def permute_state(self, state: Any) -> Any:
        """Move the axes of observations to the agent's order.

        The axes of images change from (..., H, W, C) to (..., C, H, W) if the states have
        channels-first images. Other values are returned unchanged.

        Args:
            state: one observation or a batch: an array or tensor, or a dict of them.
        """
        return self._layout.permute(state)

    def _read_state(self, state: Mapping[str, Any], trusted: bool) -> LoopState:
        shapes = [part.shape for part in self._layout.parts(self.t_states)]
        return LoopState.from_dict(state, self.num_envs, shapes, self._reward_shape, trusted)


def total_return_of(rewards: NDArray[Any], reward_shape: tuple[int, ...]) -> Any:
    """Return the float32 sum of all rewards, or one sum per component of vector rewards."""
    return np.float32(rewards.reshape(-1, *reward_shape).sum(axis=0, dtype=np.float64))


def check_end_values(values: torch.Tensor) -> torch.Tensor:
    """Return the values of ``end_states``; raise if one is NaN."""
    if torch.isnan(values).any():
        raise ValueError(f"{ASKED}: values of end_states: expected numbers, got NaN")
    return values


def join_results(
    played: Sequence[Mapping[str, Any]],
    layout: StateLayout,
    reward_shape: tuple[int, ...],
    device: torch.device,
) -> dict[str, Any]:
    """Join the results of several collectors, in the order of their environments."""
    by_name = {name: [found[name] for found in played] for name in played[0]}
    results: dict[str, Any] = {name: _joined(by_name[name], 1, device) for name in STACKED}
    results["ep_counts"] = _joined(by_name["ep_counts"], 0, device)
    for name, axis in STATES.items():
        results[name] = join_states(by_name[name], axis, layout, device)
    for part in layout.parts(results["states"]):
        part.requires_grad_(part.is_floating_point())
    masks = by_name["action_masks"]
    without = [number for number, each in enumerate(masks) if each is None]
    if without and len(without) < len(masks):
        raise ValueError(
            "action_masks: expected action masks from all environments or from none, got none "
            f"from those of collector {without[0]}"
        )
    results["action_masks"] = None if without else _joined(masks, 1, device)
    rewards = np.concatenate(by_name["rewards"], 1)
    return {**results, "total_return": total_return_of(rewards, reward_shape)}


def join_states(
    by_collector: Iterable[Sequence[Any]], axis: int, layout: StateLayout, device: torch.device
) -> Any:
    by_part = zip(*by_collector, strict=True)
    return layout.whole([_joined(parts, axis, device) for parts in by_part])


def _joined(arrays: Iterable[Any], axis: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(list(arrays), axis)).to(device)
