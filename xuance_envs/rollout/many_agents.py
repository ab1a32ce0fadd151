"""Rollouts of many agents: what a shared policy and many environments do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStart, MultiAgentStep
from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import ActionLayout, device_of
from xuance_envs.rollout.episode_statistics import EpisodeFigures, EpisodeStatistics

__all__ = ["MultiAgent", "MultiAgentRolloutCollector"]

ASKED = "agent.get_actions_and_values"

_RESULTS = (
    *("obs", "states", "action_masks", "actions", "log_probs", "values"),
    *("rewards", "done_flags", "trunc_flags", "acted"),
)
"""The attributes that a rollout leaves behind."""


class MultiAgent(Protocol):
    """Chooses the actions of all agents, and estimates values.

    It may have an attribute ``device``, or be a :class:`torch.nn.Module`, whose first parameter
    then tells the device.
    """

    def get_actions_and_values(
        self, obs: Any, states: Any, masks: Any, actions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Acts for the agents of n environments.

        Args:
            obs: ``(n, A, *shape)`` float32; for Dict and Tuple spaces dicts and tuples of such.
            states: ``(n, *state_shape)`` float32, of the environments; None where there are none.
            masks: ``(n, A, k)`` bool, which actions may be taken; None where there are none.
            actions: None to choose actions, or ``(n, A, *action_shape)`` to judge those.

        Returns:
            ``(actions, log_probs, values, entropy)``: the actions ``(n, A, *action_shape)``, their
            log-probabilities and the values, both ``(n, A)``. The entropy, in whatever form, is for
            the training only.
        """


class MultiAgentRolloutCollector(EpisodeFigures):
    """Has many agents play in many environments, and keeps what happens.

    :meth:`rollout` steps every environment ``steps_per_env`` times; what came of it is in the
    attributes below, new tensors each time. The environments are reset once, by the constructor;
    each rollout goes on where the last one stopped. T is ``steps_per_env``, N the number of
    environments and A that of agents. Statistics of episodes are those of
    :class:`~xuance_envs.rollout.collector.RolloutCollector`; a return is the mean of the agents'.

    Args:
        envs: the environments, whose agents have equal spaces; closed by :meth:`close`.
        agent: chooses the actions; see :class:`MultiAgent`.
        steps_per_env: steps of each environment in a rollout.
        device: where the tensors are; None for the agent's own device, else CUDA where there is
            one, else the CPU.
        window: how many finished episodes of each environment the statistics are about.
        seed: of the first reset.

    Raises:
        ValueError: agents have different spaces or are in groups, or an argument is out of its
            range.

    Attributes:
        obs: ``(T, N, A, *shape)`` float32, what was acted on; for Dict and Tuple spaces dicts and
            tuples of such tensors.
        states: ``(T, N, *state_shape)`` float32, of the environments, likewise; None without any.
        action_masks (torch.Tensor | None): ``(T, N, A, k)`` bool, of the actions.
        actions (torch.Tensor): ``(T, N, A, *action_shape)``: float32 for Box, else int32.
        rewards (torch.Tensor): ``(T, N, A)`` float32.
        values (torch.Tensor): ``(T, N, A)`` float32.
        log_probs (torch.Tensor): ``(T, N, A)`` float32.
        acted (torch.Tensor): ``(T, N, A)`` bool: what is a transition; learn from nothing else.
        done_flags (torch.Tensor): ``(T, N, A)`` int32: 1 where an agent was terminated.
        trunc_flags (torch.Tensor): ``(T, N, A)`` int32: 1 where one was truncated.
        global_steps (int): environment steps so far.

    Example:
        >>> import torch
        >>> from xuance_envs import MultiAgentRolloutCollector, make_multi_agent_vec
        >>> class Still:
        ...     device = "cpu"
        ...     def get_actions_and_values(self, obs, states, masks, actions=None):
        ...         zeros = torch.zeros(obs.shape[:2])
        ...         return zeros.int(), zeros, zeros, zeros
        >>> envs = make_multi_agent_vec("mpe2:simple_spread_v3", 2, backend="dummy")
        >>> collector = MultiAgentRolloutCollector(envs, Still(), steps_per_env=30, seed=0)
        >>> collector.rollout()
        >>> collector.obs.shape, collector.states.shape, bool(collector.acted.all())
        (torch.Size([30, 2, 3, 18]), torch.Size([30, 2, 54]), True)
        >>> collector.advantages(gamma=0.99, gae_lambda=0.95).shape
        torch.Size([30, 2, 3])
        >>> collector.close()
    """

    obs: Any
    states: Any
    action_masks: torch.Tensor | None
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    done_flags: torch.Tensor
    trunc_flags: torch.Tensor
    acted: torch.Tensor

    def __init__(
        self,
        envs: MultiAgentVecEnv,
        agent: MultiAgent,
        steps_per_env: int,
        *,
        device: torch.device | str | None = None,
        window: int = 10,
        seed: int | Sequence[int | None] | None = None,
    ) -> None:
        if steps_per_env < 1:
            raise ValueError(f"steps_per_env: expected at least 1, got {steps_per_env}")
        if not envs.is_one:
            raise ValueError(
                f"expected agents with equal spaces, and no groups, got {envs.groups} with "
                f"{envs.observation_space}"
            )
        self.envs = envs
        self.agent = agent
        self.steps_per_env = steps_per_env
        self.device = device_of(agent, device)
        self.global_steps = 0
        self._action_layout = ActionLayout(envs.action_space[envs.agents[0]])
        self.statistics = EpisodeStatistics(envs.num_envs, window)
        self._next: MultiAgentStart = envs.reset(seed=seed).next()
        self._ends: list[tuple[Any, ...]] = []

    def rollout(self) -> None:
        """Steps every environment ``steps_per_env`` times; see the attributes for the result.

        Raises:
            ValueError: the agent's answer has a wrong shape.
            VecEnvError: as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step` raises them.
        """
        self._ends = []
        self.statistics.forget()
        kept: list[tuple[Any, ...]] = []
        for t in range(self.steps_per_env):
            start = self._next
            obs, states, masks = self._seen(start.obs, start.state, start.action_mask)
            with torch.no_grad():
                answer = self.agent.get_actions_and_values(obs, states, masks)
            actions, log_probs, values = self._checked(answer, self.envs.num_envs)
            given = self._action_layout.for_envs(actions.cpu().numpy())
            step = self.envs.step(given)
            self._note_ends(t, step)
            kept.append((obs, states, masks, actions, log_probs, values, *self._came(step)))
            self._next = step.next()
            self.global_steps += self.envs.num_envs
        columns = [_stacked(each) for each in zip(*kept, strict=True)]
        self.__dict__.update(zip(_RESULTS, columns, strict=True))
        self.actions = self.actions.to(self._action_layout.dtype)
        self.done_flags, self.trunc_flags = self.done_flags.int(), self.trunc_flags.int()

    def advantages(self, gamma: float, gae_lambda: float) -> torch.Tensor:
        """Generalized advantage estimates of the last rollout's actions.

        Each agent's are its own, and stop where it ends: what it did not act in is 0. One that was
        truncated, or is not over, is bootstrapped from the value of its last observation; one that
        was terminated is not. The agent is asked for these values, so this comes before it learns.

        Args:
            gamma: the discount per step.
            gae_lambda: 0 looks one step ahead, 1 to the agent's end.

        Returns:
            ``(T, N, A)`` float32.

        Raises:
            RuntimeError: there has been no rollout yet.
        """
        if "acted" not in self.__dict__:
            raise RuntimeError("advantages are those of a rollout: call rollout first")
        acted, flat = self.acted, (self.steps_per_env, -1)
        terminated = self.done_flags.bool() | ~acted
        ended = terminated | self.trunc_flags.bool()
        ended[-1] = True
        bootstraps = torch.zeros_like(self.values)
        last = self._next
        unfinished = self._values_of(len(last.env_ids), last.obs, last.state, last.action_mask)
        bootstraps[-1] = unfinished
        for t, envs, *seen in self._ends:
            bootstraps[t, torch.from_numpy(envs).to(self.device)] = self._values_of(
                len(envs), *seen
            )
        ended_flat = ended.reshape(flat)
        advantages = generalized_advantages(
            self.rewards.reshape(flat),
            self.values.reshape(flat),
            terminated.reshape(flat),
            ended_flat,
            bootstraps.reshape(flat).t()[ended_flat.t()],
            gamma,
            gae_lambda,
        )
        return advantages.reshape(acted.shape) * acted

    def close(self) -> None:
        """Closes the environments; again, it does nothing."""
        self.envs.close()

    def __enter__(self) -> MultiAgentRolloutCollector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _seen(self, obs: Any, state: Any, mask: Any) -> tuple[Any, Any, Any]:
        """What the agent sees, as tensors of its own."""
        return self._tensor(obs), self._tensor(state), self._tensor(mask, torch.bool)

    def _tensor(self, batch: Any, dtype: torch.dtype = torch.float32) -> Any:
        return _each(batch, lambda array: torch.tensor(array, dtype=dtype, device=self.device))

    def _came(self, step: MultiAgentStep) -> tuple[Any, ...]:
        flags = [self._tensor(f, torch.bool) for f in (step.terminated, step.truncated, step.acted)]
        return self._tensor(step.rewards), *flags

    def _note_ends(self, t: int, step: MultiAgentStep) -> None:
        """Takes note of last observations, and of the episodes that are over."""
        self.statistics.add_step(step.rewards.mean(axis=1))
        cut = np.flatnonzero(step.truncated.any(axis=1))
        if len(cut):
            seen = step.obs, step.state, step.action_mask
            self._ends.append((t, cut, *[_each(part, lambda array: array[cut]) for part in seen]))
        for env in np.flatnonzero(step.episode_over).tolist():
            self.statistics.add_end(env, {}, bool(step.truncated[env].any()))

    def _values_of(self, count: int, obs: Any, state: Any, mask: Any) -> torch.Tensor:
        with torch.no_grad():
            answer = self.agent.get_actions_and_values(*self._seen(obs, state, mask))
        return self._checked(answer, count)[2]

    def _checked(self, answer: Any, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not isinstance(answer, tuple | list) or len(answer) != 4:
            raise ValueError(
                f"{ASKED}: expected 4 outputs (actions, log_probs, values, entropy), got {answer!r}"
            )
        actions, log_probs, values, _ = answer
        rows = (count, self.envs.num_agents)
        expected = {
            "actions": (*rows, *self._action_layout.shape),
            "log_probs": rows,
            "values": rows,
        }
        for (name, shape), tensor in zip(
            expected.items(), (actions, log_probs, values), strict=True
        ):
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{ASKED}: {name}: expected shape {shape}, got {tuple(tensor.shape)}"
                )
        return actions, log_probs, values


def _each(batch: Any, do: Callable[[Any], Any]) -> Any:
    """A batch with something done to each of its arrays; None stays None."""
    if batch is None:
        return None
    if isinstance(batch, dict):
        return {key: _each(part, do) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_each(part, do) for part in batch)
    return do(batch)


def _stacked(batches: Sequence[Any]) -> Any:
    """Batches of one structure as one, with an axis more."""
    first = batches[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _stacked([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(parts) for parts in zip(*batches, strict=True))
    return torch.stack(list(batches))
