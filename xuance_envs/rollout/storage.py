"""Allocation and filling of rollout tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xuance_envs.rollout.agents import ActionLayout, AgentOutputs
from xuance_envs.rollout.env_adapters import LoopStep
from xuance_envs.rollout.state_layout import StateLayout, StateSlot
from xuance_envs.rollout.transfer import Transfer


class RolloutStorage:
    def __init__(
        self,
        shape: tuple[int, ...],
        layout: StateLayout,
        actions: ActionLayout,
        transfer: Transfer,
        reward_shape: tuple[int, ...],
    ) -> None:
        steps, num_envs, *team = shape
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
        makers = self._make_states, self._make_outputs, self._make_results
        states, outputs, results = ([make() for make in each] for each in makers)
        self._transfer.wait(self._mark)
        hosts = [host.numpy() for host in self._hosts or results]
        rows = self._rows(states, 0, states[0].shape[1])
        return Rollout(states, rows, outputs, results, hosts)

    def part(self, whole: Rollout, lo: int, hi: int) -> Rollout:
        """Return a view of a rollout's environments ``lo`` to ``hi - 1``."""
        kinds: Any = whole.states, whole.outputs, whole.results, whole.hosts
        states, outputs, results, hosts = ([each[:, lo:hi] for each in kind] for kind in kinds)
        rows = self._rows(states, lo, hi)
        return Rollout(states, rows, outputs, results, hosts, lo, whole.ends)

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


@dataclass(eq=False)
class Rollout:
    """The tensors of a rollout. An axis of agents, if any, follows the environments' axis."""

    states: list[torch.Tensor]
    state_rows: list[StateSlot]
    outputs: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]
    hosts: Sequence[NDArray[Any]]
    first: int = 0
    ends: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    """For segments that end together, the environments and the parts of their last states."""
    masks: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._output_rows = list(zip(*(output.unbind() for output in self.outputs), strict=True))
        self._result_rows = list(zip(*self.hosts, strict=True))

    def store_outputs(self, t: int, outputs: AgentOutputs) -> None:
        for row, output in zip(self._output_rows[t], outputs, strict=True):
            row.copy_(output)

    def store_step(self, t: int, step: LoopStep, parts: Sequence[NDArray[Any]]) -> None:
        """Store a step's results, and the observations of the segments that end with it."""
        for row, result in zip(self._result_rows[t], step.results, strict=True):
            row[...] = result
        places = step.segment_ends
        if t == len(self._result_rows) - 1:  # unfinished episodes count as truncated
            _, terminated, truncated, *acted = self._result_rows[t]
            unfinished = (terminated | truncated) == 0
            truncated[np.logical_and.reduce([unfinished, *acted])] = 1
            places = np.arange(len(parts[0]))
        if len(places):
            copies = [part.take(places, axis=0) for part in parts]
            self.ends.append((self.first + places, *copies))
