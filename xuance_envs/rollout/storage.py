"""The tensors of a rollout: allocated once, and written anew by each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.rollout.agents import ActionLayout
from xuance_envs.rollout.states import StateLayout, StateRow
from xuance_envs.rollout.transfer import Transfer

__all__ = ["RolloutStorage", "SegmentEnds"]


class RolloutStorage:
    """Everything that ``steps`` steps of ``num_envs`` environments leave behind.

    What agents give is on their device and stays there. What environments give is written into
    memory of this process; states go to the device at each step, because the agent needs them,
    and rewards and flags, which it does not, all together at the end.

    Args:
        steps: per rollout.
        num_envs: number of environments.
        layout: of the states.
        actions: of the actions.
        transfer: the way to the device.

    Attributes:
        states (list[torch.Tensor]): by part, ``(steps + 1, num_envs, *state_shape)``.
        state_rows (list[StateRow]): the same by step.
        actions (torch.Tensor): ``(steps, num_envs, *action_shape)`` on the device.
        log_probs (torch.Tensor): ``(steps, num_envs)`` on the device.
        values (torch.Tensor): ``(steps, num_envs)`` on the device.
        rewards (torch.Tensor): ``(steps, num_envs)`` float32 on the device, once they were sent.
        terminated (torch.Tensor): ``(steps, num_envs)`` int32, likewise.
        truncated (torch.Tensor): ``(steps, num_envs)`` int32, likewise.
        host_rewards (numpy.ndarray): the rewards here.
        host_truncated (numpy.ndarray): the truncated ones here.
    """

    def __init__(
        self,
        steps: int,
        num_envs: int,
        layout: StateLayout,
        actions: ActionLayout,
        transfer: Transfer,
    ) -> None:
        self._transfer = transfer
        self._mark: torch.cuda.Event | None = None
        self.states = layout.allocate(steps + 1, num_envs)
        stage = layout.stage(num_envs)
        self.state_rows: list[StateRow] = [
            layout.row([part[t] for part in self.states], stage) for t in range(steps + 1)
        ]
        there = transfer.device
        shape = steps, num_envs
        self.actions = torch.zeros((*shape, *actions.shape), dtype=actions.dtype, device=there)
        self.log_probs = torch.zeros(shape, dtype=torch.float32, device=there)
        self.values = torch.zeros(shape, dtype=torch.float32, device=there)
        self._agent_rows = list(
            zip(*(a.unbind() for a in (self.actions, self.log_probs, self.values)), strict=True)
        )
        kinds = torch.float32, torch.int32, torch.int32
        self._hosts = [transfer.host_tensor(shape, kind) for kind in kinds]
        self.rewards, self.terminated, self.truncated = (
            self._hosts
            if transfer.direct
            else [torch.zeros(shape, dtype=kind, device=there) for kind in kinds]
        )
        self.host_rewards, host_terminated, self.host_truncated = (h.numpy() for h in self._hosts)
        self._env_rows = list(
            zip(self.host_rewards, host_terminated, self.host_truncated, strict=True)
        )

    def put_answer(
        self, t: int, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Stores an agent's answer at step t."""
        action_row, log_prob_row, value_row = self._agent_rows[t]
        action_row.copy_(actions)
        log_prob_row.copy_(log_probs)
        value_row.copy_(values)

    def put_results(
        self,
        t: int,
        rewards: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Stores what came of step t."""
        reward_row, terminated_row, truncated_row = self._env_rows[t]
        reward_row[:] = rewards
        terminated_row[:] = terminated
        truncated_row[:] = truncated

    def wait(self) -> None:
        """Waits until rewards and flags may be written again."""
        self._transfer.wait(self._mark)

    def send(self) -> None:
        """Starts to bring the rewards and flags to the device, unless they are there."""
        if not self._transfer.direct:
            there = self.rewards, self.terminated, self.truncated
            for host, tensor in zip(self._hosts, there, strict=True):
                self._transfer.send(host, tensor)
            self._mark = self._transfer.mark()


class SegmentEnds:
    """The last observations of a rollout's segments, collected as they come.

    Args:
        layout: of the states.
        num_envs: number of environments.
    """

    def __init__(self, layout: StateLayout, num_envs: int) -> None:
        self._layout = layout
        self._num_envs = num_envs
        self._envs: list[NDArray[np.intp]] = []
        self._parts: list[list[NDArray[Any]]] = []

    def add(self, envs: NDArray[np.intp], parts: Sequence[NDArray[Any]]) -> None:
        """Takes a copy of some environments' observations out of a batch of all."""
        self._envs.append(envs)
        self._parts.append([part.take(envs, axis=0) for part in parts])

    def states(self) -> Any:
        """The last states, environment by environment, in time order within each."""
        order = np.argsort(np.concatenate(self._envs), kind="stable")
        row = self._layout.new_row(len(order))
        row.write([np.concatenate(part)[order] for part in zip(*self._parts, strict=True)])
        return row.states

    def counts(self) -> NDArray[np.int32]:
        """How many segments each environment has, ``(num_envs,)``."""
        found = np.bincount(np.concatenate(self._envs), minlength=self._num_envs)
        return found.astype(np.int32)
