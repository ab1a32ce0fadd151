"""Collectors: rollouts of an agent in a vectorized environment, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, TypedDict, overload

import torch

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import Agent, MultiAgent
from xuance_envs.rollout.env_adapters import MultiAgentEnvs, Scalarize
from xuance_envs.rollout.halves import Halves
from xuance_envs.rollout.playing import RolloutLoop
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.rollout.results import RESULTS, check_end_values
from xuance_envs.rollout.storage import Rollout
from xuance_envs.vector_envs.options import AutoBool
from xuance_envs.vector_envs.signatures import with_options
from xuance_envs.vector_envs.vector_env import VecEnv

if TYPE_CHECKING:  # since Python 3.11 they are in typing
    from typing_extensions import Self, Unpack

__all__ = ["CollectorOptions", "MultiAgentRolloutCollector", "RolloutCollector"]


class PlayOptions(TypedDict, total=False):
    """Optional arguments of collectors, without ``recorder``."""

    device: torch.device | str | None
    state_dtype: torch.dtype
    channels_first: AutoBool
    progress: bool
    window: int
    seed: int | Sequence[int | None] | None
    halves: Halves
    scalarize: Scalarize | None


class CollectorOptions(PlayOptions, total=False):
    """Optional arguments of collectors."""

    recorder: GifRecorder | None


class RolloutCollector(RolloutLoop):
    """A collector of fixed-length rollouts of an agent in a vectorized environment.

    :meth:`~xuance_envs.rollout.playing.RolloutLoop.rollout` steps every environment
    ``steps_per_env`` times and stores the results in the attributes below.
    :class:`~xuance_envs.rollout.agent_loop.AgentLoop` describes single steps and statistics. The
    constructor resets the environments. Each rollout continues where the previous one stopped. A
    rollout that is interrupted or fails leaves the result attributes unset. If it leaves a step
    pending, the next call resets the environments.

    The tensors are on ``device``. Later rollouts never overwrite a tensor that is still referenced,
    for example by a view or by autograd. Memory without references is reused. T is
    ``steps_per_env`` and N the number of environments.

    With a multi-agent vec env, the constructor returns a :class:`MultiAgentRolloutCollector`.

    Args:
        vec_env: the environments; ``close`` closes them.
        agent: agent that selects the actions; see :class:`~xuance_envs.rollout.agents.Agent`.
        steps_per_env: steps per environment and rollout.
        device: device of the tensors; None for the agent's device, else CUDA if available, else
            the CPU.
        state_dtype: dtype of the states. ``torch.uint8`` keeps images as bytes, in a quarter of the
            memory of float32. Observations beyond the range of an integer dtype raise a ValueError.
            For a Dict space, parts whose values the dtype cannot represent become float32.
        channels_first: True to permute images from (H, W, C) to (C, H, W), False to keep them,
            ``"auto"`` to permute all images that are not already channels-first.
        progress: True to show a progress bar during rollouts.
        recorder: recorder of environment 0's episodes; None for no recordings.
        window: number of finished episodes per environment in the statistics.
        seed: seed of the first reset, as in
            :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset`.
        halves: 1 to step all environments together; 2 for double buffering: one half of the workers
            steps while the agent computes actions for the other half. This is faster if agent and
            environments use different cores. The agent then samples actions for one half at a time.
            Double buffering requires two or more workers and no ``recorder``. ``"auto"`` measures
            both modes during the first steps and keeps the faster one, or uses 1 if 2 is not
            possible. If the agent receives action masks, all environments always step together.
        scalarize: conversion of vector rewards to numbers: k weights of the components, or a
            function that maps rewards ``(n, k)`` to n numbers. None keeps vectors; the agent must
            then return one value per component.

    Raises:
        ValueError: an argument is out of range, observations cannot become tensors, or the action
            space is not Discrete, MultiDiscrete, MultiBinary or Box.
        TypeError: the agent has no ``get_actions_and_values``, or ``vec_env`` is not a vec env of
            this package. The message says how to convert a vec env of Gymnasium or XuanCe.

    Attributes:
        states: ``(T, N, *state_shape)`` of ``state_dtype``, the states before each step; for a Dict
            space a dict of tensors. A new leaf tensor that requires grad, unless its dtype is an
            integer dtype.
        actions (torch.Tensor): ``(T, N, *action_shape)`` of ``action_dtype``.
        rewards (torch.Tensor): ``(T, N)`` float32; ``(T, N, k)`` for vector rewards without
            ``scalarize``.
        values (torch.Tensor): float32 in the shape of ``rewards``, the agent's value estimates of
            the states.
        log_probs (torch.Tensor): ``(T, N)`` float32, log-probabilities of the actions.
        done_flags (torch.Tensor): ``(T, N)`` int32: 1 where terminated.
        trunc_flags (torch.Tensor): ``(T, N)`` int32: 1 where truncated. The rollout's last step
            counts as truncated if the episode is unfinished; the environment is not reset.
        end_states: ``(E, *state_shape)`` of ``state_dtype``, the last state of each of the E
            segments, for bootstrapping, ordered by environment, then by time. A segment is the part
            of an episode within a rollout.
        ep_counts (torch.Tensor): ``(N,)`` int32, segments per environment.
        total_return (numpy.float32): sum of all rewards; for vector rewards an array ``(k,)``
            float32.
        action_masks (torch.Tensor | None): ``(T, N, m)`` bool for m actions, the masks passed to
            the agent; None if there are none.
        images (list[list[PIL.Image.Image]]): images by environment, from
            :meth:`~xuance_envs.rollout.playing.RolloutLoop.test_agent`.
        halves: 1 or 2; ``"auto"`` while both are being measured.

    Example:
        >>> import torch
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env, RolloutCollector
        >>> class Coin:
        ...     def get_actions_and_values(self, states, actions=None):
        ...         if actions is None:
        ...             actions = torch.randint(2, (len(states),))
        ...         half = torch.full((len(states),), 0.5)
        ...         return actions, half.log(), torch.zeros(len(states)), half
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> collector = RolloutCollector(envs, Coin(), steps_per_env=50, device="cpu", seed=0)
        >>> collector.rollout()
        >>> collector.states.shape, collector.rewards.shape, collector.total_return
        (torch.Size([50, 3, 4]), torch.Size([50, 3]), np.float32(150.0))
        >>> collector.advantages(gamma=0.99, gae_lambda=0.95).shape
        torch.Size([50, 3])
        >>> collector.close()
    """

    @overload
    def __new__(
        cls,
        vec_env: MultiAgentVecEnv,
        agent: MultiAgent,
        steps_per_env: int,
        **options: Unpack[CollectorOptions],
    ) -> MultiAgentRolloutCollector: ...

    @overload
    def __new__(
        cls, vec_env: VecEnv, agent: Agent, steps_per_env: int, **options: Unpack[CollectorOptions]
    ) -> Self: ...

    def __new__(cls, vec_env: Any = None, *_: Any, **__: Any) -> Any:
        """Create a `MultiAgentRolloutCollector` for multi-agent environments."""
        is_multi_agent = cls is RolloutCollector and isinstance(vec_env, MultiAgentVecEnv)
        return super().__new__(MultiAgentRolloutCollector if is_multi_agent else cls)

    __new__.__signature__ = signature(RolloutLoop.__init__)  # type: ignore[attr-defined]  # for help


@with_options(None, RolloutCollector)
class MultiAgentRolloutCollector(RolloutCollector):
    """A collector of fixed-length rollouts in multi-agent environments.

    :class:`RolloutCollector` documents the common arguments and methods, and returns this class for
    a :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv`. Tensors with a value
    per agent have an additional axis of length A after the environments' axis. ``t_states``,
    ``state_space``, ``state_shape`` and the results of single steps and resets are dicts. They have
    the agents' ``"obs"`` and, if there is one, the global ``"state"``. Rollouts store these
    separately, in ``obs`` and ``states``. An episode's return is the mean of the agents' returns.

    Args:
        vec_env: the environments, whose agents have equal spaces; ``close`` closes them.
        agent: agent that selects the actions; see :class:`~xuance_envs.rollout.agents.MultiAgent`.
        steps_per_env: steps per environment and rollout.
        scalarize: conversion of vector rewards to numbers, required if rewards are vectors: k
            weights of the components, or a function that maps rewards ``(n, A, k)`` to ``(n, A)``.
        **options: the other arguments of :class:`RolloutCollector`.

    Raises:
        TypeError: ``vec_env`` or the agent is not multi-agent.
        ValueError: agents have different spaces or are in groups, rewards are vectors without
            ``scalarize``, or one of the reasons listed for :class:`RolloutCollector`.

    Attributes:
        obs: ``(T, N, A, *shape)`` of ``state_dtype``, the observations before each step; for Dict
            and Tuple spaces dicts and tuples of tensors. ``obs`` and ``states`` require no grad.
        states: ``(T, N, *state_shape)``, global states before each step; None if there are none.
        action_masks (torch.Tensor | None): ``(T, N, A, m)`` bool for m actions; None if there are
            none.
        actions (torch.Tensor): ``(T, N, A, *action_shape)``: float32 for Box, otherwise int32.
        rewards (torch.Tensor): ``(T, N, A)`` float32.
        values (torch.Tensor): ``(T, N, A)`` float32.
        log_probs (torch.Tensor): ``(T, N, A)`` float32.
        acted (torch.Tensor): ``(T, N, A)`` bool: True where an active agent acted. Only these
            entries are transitions to learn from.
        done_flags (torch.Tensor): ``(T, N, A)`` int32: 1 where an agent terminated, or became
            inactive without a flag.
        trunc_flags (torch.Tensor): ``(T, N, A)`` int32: 1 where an agent was truncated, and at the
            rollout's last step where an agent acted and is still active.
        end_obs: ``(E, A, *shape)``, the last observations of each segment, ordered by environment,
            then by time. A segment ends where an acting agent's ``done_flags`` or ``trunc_flags``
            is 1, and at the last step. E is the number of segments.
        end_states: ``(E, *state_shape)``, the global states of ``end_obs``; None if there are none.
        ep_counts (torch.Tensor): ``(N,)`` int32, segments per environment.

    Example:
        >>> import torch
        >>> from xuance_envs import RolloutCollector, make_multi_agent_vec
        >>> class Still:
        ...     device = "cpu"
        ...     def get_actions_and_values(self, obs, states, masks, actions=None):
        ...         zeros = torch.zeros(obs.shape[:2])
        ...         return zeros.int(), zeros, zeros, zeros
        >>> envs = make_multi_agent_vec("mpe2:simple_spread_v3", 2, backend="dummy")
        >>> collector = RolloutCollector(envs, Still(), steps_per_env=30, seed=0)
        >>> collector.rollout()
        >>> collector.obs.shape, collector.states.shape, bool(collector.acted.all())
        (torch.Size([30, 2, 3, 18]), torch.Size([30, 2, 54]), True)
        >>> collector.advantages(gamma=0.99, gae_lambda=0.95).shape
        torch.Size([30, 2, 3])
        >>> collector.close()
    """

    _envs_class = MultiAgentEnvs
    _results = (*RESULTS, "obs", "end_obs", "acted")

    obs: Any
    end_obs: Any
    acted: torch.Tensor
    _envs: MultiAgentEnvs

    @property
    def t_alive(self) -> torch.Tensor:
        """``(N, A)`` bool: True for the agents that act in the next step."""
        return torch.tensor(self._envs.alive, device=self.device)

    def advantages(self, gamma: float, gae_lambda: float) -> torch.Tensor:
        """Compute generalized advantage estimates of each agent; 0 where the agent did not act.

        Arguments and errors: :meth:`~xuance_envs.rollout.results.RolloutResults.advantages`.

        Returns:
            ``(T, N, A)`` float32. An agent's estimates use only its own values, and no rewards
            after its own termination or truncation.
        """
        with torch.no_grad():
            count = self._num_segments()
            values = self._end_values(count, {"obs": self.end_obs, "state": self.end_states})
            terminated = self.done_flags.bool() | ~self.acted
            ended = terminated | self.trunc_flags.bool()
            last = torch.zeros_like(self.values)
            seen_last = (ended & self.acted).any(dim=2)
            seen_last[-1] = True
            last.transpose(0, 1)[seen_last.t()] = values
            last.masked_fill_(terminated, 0.0)
            # A reward equal to the value gives an advantage of 0 where an agent did not act.
            baseline = self.values.masked_fill(~self.acted & self.values.isnan(), 0.0)
            rewards = torch.where(self.acted, self.rewards, baseline)
            series = rewards, baseline, terminated, ended
            rewards, baseline, terminated, ended = (each.flatten(1) for each in series)
            end_values = check_end_values(last.flatten(1).t()[ended.t()])
            advantages = generalized_advantages(
                rewards, baseline, terminated, ended, end_values, gamma, gae_lambda
            )
        return advantages.reshape(self.acted.shape)

    def _query(self, states: Any, masks: torch.Tensor | None) -> Any:
        agent: Any = self.agent
        return agent.get_actions_and_values(states["obs"], states.get("state"), masks)

    def _set_results(self, rollout: Rollout) -> None:
        super()._set_results(rollout)
        self.obs, self.states = self.states["obs"], self.states.get("state")
        self.end_obs, self.end_states = self.end_states["obs"], self.end_states.get("state")
        *_, self.acted = rollout.results
