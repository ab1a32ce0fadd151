"""Allocation and filling of rollout tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.rollout.agents import ActionLayout
from xuance_envs.rollout.state_layout import StateLayout, StateSlot
from xuance_envs.rollout.transfer import Transfer


class RolloutStorage:
    def __init__(
        self,
        steps: int,
        num_envs: int,
        layout: StateLayout,
        actions: ActionLayout,
        transfer: Transfer,
        team: tuple[int, ...] = (),
        reward_shape: tuple[int, ...] = (),
    ) -> None:
        shape = steps, num_envs, *team
        values = (*shape, *reward_shape), torch.float32
        outputs = [((*shape, *actions.shape), actions.dtype), (shape, torch.float32), values]
        results = [values, *[(shape, torch.int32)] * 2]
        results += [(shape, torch.bool)] * len(team)
        self._layout = layout
        self._transfer = transfer
        self._stages: dict[tuple[int, int], Any] = {}
        self._make_states = layout.makers(steps + 1, num_envs)
        self._make_outputs = [transfer.maker(*kind) for kind in outputs]
        self._make_results = [transfer.maker(*kind) for kind in results]
        self._hosts = [] if transfer.direct else [transfer.host_tensor(*kind) for kind in results]
        self._mark: torch.cuda.Event | None = None

    def begin(self) -> Rollout:
        """Allocate a rollout; reuse the memory of earlier rollouts that nothing references."""
        # Environments write into host memory. The agent needs the states on its device at each
        # step. Rewards and flags follow together in `send`.
        states = [make() for make in self._make_states]
        results = [make() for make in self._make_results]
        self._transfer.wait(self._mark)
        return Rollout(
            states,
            self._rows(states, 0, states[0].shape[1]),
            [make() for make in self._make_outputs],
            results,
            [host.numpy() for host in self._hosts or results],
        )

    def part(self, rollout: Rollout, lo: int, hi: int) -> Rollout:
        """Return a view of a rollout's environments ``lo`` to ``hi - 1``."""
        states = [part[:, lo:hi] for part in rollout.states]
        outputs = rollout.actions, rollout.log_probs, rollout.values
        return Rollout(
            states,
            self._rows(states, lo, hi),
            [tensor[:, lo:hi] for tensor in outputs],
            [tensor[:, lo:hi] for tensor in rollout.results],
            [host[:, lo:hi] for host in rollout.hosts],
        )

    def _rows(self, states: list[torch.Tensor], lo: int, hi: int) -> list[StateSlot]:
        if (lo, hi) not in self._stages:
            self._stages[lo, hi] = self._layout.stage(hi - lo)
        return self._layout.rows(states, self._stages[lo, hi])

    def send(self, rollout: Rollout) -> None:
        """Start copying rewards and flags to the device if necessary."""
        if self._hosts:
            for host, tensor in zip(self._hosts, rollout.results, strict=True):
                self._transfer.send(host, tensor)
            self._mark = self._transfer.mark()


class Rollout:
    """The tensors of a rollout. An axis of agents, if any, follows the environments' axis."""

    def __init__(
        self,
        states: list[torch.Tensor],
        state_rows: list[StateSlot],
        outputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        hosts: Sequence[NDArray[Any]],
    ) -> None:
        self.states = states
        self.state_rows = state_rows
        self.actions, self.log_probs, self.values = outputs
        self.results = results
        self.hosts = hosts
        self._output_rows = list(zip(*(output.unbind() for output in outputs), strict=True))
        self._result_rows = list(zip(*hosts, strict=True))

    def store_outputs(
        self, t: int, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor
    ) -> None:
        action_row, log_prob_row, value_row = self._output_rows[t]
        action_row.copy_(actions)
        log_prob_row.copy_(log_probs)
        value_row.copy_(values)

    def store_results(self, t: int, results: Sequence[NDArray[Any]]) -> None:
        for row, result in zip(self._result_rows[t], results, strict=True):
            row[...] = result

    def truncate_unfinished(self) -> None:
        """Mark unfinished episodes as truncated at the last step."""
        _, terminated, truncated, *acted = (host[-1] for host in self.hosts)
        unfinished = (terminated | truncated) == 0
        truncated[np.logical_and.reduce([unfinished, *acted])] = 1


class SegmentEnds:
    def __init__(self, layout: StateLayout, num_envs: int) -> None:
        self._layout = layout
        self._num_envs = num_envs
        self._envs: list[NDArray[np.intp]] = []
        self._parts: list[list[NDArray[Any]]] = []

    def add(self, first: int, places: NDArray[np.intp], parts: Sequence[NDArray[Any]]) -> None:
        """Store copies of the observations at ``places``."""
        self._envs.append(first + places)
        self._parts.append([part.take(places, axis=0) for part in parts])

    def states(self) -> Any:
        """Return the last states, ordered by environment, then by time."""
        order = np.argsort(np.concatenate(self._envs), kind="stable")
        row = self._layout.new_row(len(order))
        row.write([np.concatenate(part)[order] for part in zip(*self._parts, strict=True)])
        return row.states

    def counts(self) -> NDArray[np.int32]:
        """Return the number of segments of each environment, ``(num_envs,)``."""
        found = np.bincount(np.concatenate(self._envs), minlength=self._num_envs)
        return found.astype(np.int32)
