"""Collectors: what an agent and many environments do together, as tensors to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, TypedDict, overload

import torch

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.rollout.advantages import generalized_advantages
from xuance_envs.rollout.agents import Agent, MultiAgent, checked_numbers
from xuance_envs.rollout.env_adapters import MultiAgentEnvs
from xuance_envs.rollout.playing import RolloutLoop
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.rollout.results import RESULTS, checked_ends
from xuance_envs.rollout.storage import Rollout, SegmentEnds
from xuance_envs.vector_envs.vector_env import VecEnv

if TYPE_CHECKING:  # since Python 3.11 they are in typing
    from typing_extensions import Self, Unpack

__all__ = ["CollectorOptions", "MultiAgentRolloutCollector", "RolloutCollector"]


class CollectorOptions(TypedDict, total=False):
    """The arguments of collectors that have defaults."""

    device: torch.device | str | None
    state_dtype: torch.dtype
    channels_first: bool | str
    progress: bool
    recorder: GifRecorder | None
    window: int
    seed: int | Sequence[int | None] | None
    halves: int | str


class RolloutCollector(RolloutLoop):
    """Has an agent play in a vector environment, and keeps what happens.

    :meth:`~xuance_envs.rollout.playing.RolloutLoop.rollout` steps every environment
    ``steps_per_env`` times; what came of it is in the attributes below, beside those of
    :class:`~xuance_envs.rollout.agent_loop.AgentLoop`, which has single steps and statistics. The
    environments are reset once, by the constructor; each rollout goes on where the last one
    stopped. An interrupted rollout, or one that raised, is lost, so that its attributes are
    missing, and if a step was under way then, the environments are reset before the next.

    The tensors are on ``device``, and yours: where you hold anything of a rollout, be it a part of
    a tensor or what autograd has saved, no later rollout writes. What nobody holds any more makes
    room for the next. T is ``steps_per_env`` and N the number of environments.

    Environments with many agents each make it a :class:`MultiAgentRolloutCollector`.

    Args:
        vec_env: the environments; closed by ``close``.
        agent: chooses the actions; see :class:`~xuance_envs.rollout.agents.Agent`.
        steps_per_env: steps of each environment in a rollout.
        device: where the tensors are; None for the agent's own device, else CUDA where there is
            one, else the CPU.
        state_dtype: of the states. ``torch.uint8`` keeps images as they are, at a quarter of the
            memory; for a Dict space, an integer one goes to the parts that fit it.
        channels_first: whether images, (H, W, C), become (C, H, W): True, False, or ``"auto"`` for
            all but those that have their channels first already.
        progress: whether a progress bar is shown during a rollout.
        recorder: records episodes of environment 0; None for no recordings.
        window: how many finished episodes of each environment the statistics are about.
        seed: of the first reset, as :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.reset` takes
            it.
        halves: 2 lets one half of the workers step while the agent thinks about the other half's
            environments, which pays where the two do not need the same cores. The agent is then
            asked about the halves in turn: one that draws draws in that order. ``"auto"`` tries
            both in the first steps, and goes on with what is quicker.

    Raises:
        ValueError: an argument is out of its range, observations cannot become tensors, or the
            action space is not Discrete, MultiDiscrete, MultiBinary or Box.
        TypeError: ``vec_env`` is no vector environment of this package; says what to do with a
            Gymnasium or XuanCe one.

    Attributes:
        states: ``(T, N, *state_shape)`` of ``state_dtype``, what was acted in. A leaf that requires
            grad, a new one each time, unless its dtype is an integer one. For a Dict space a dict
            of such tensors.
        actions (torch.Tensor): ``(T, N, *action_shape)`` of ``action_dtype``.
        rewards (torch.Tensor): ``(T, N)`` float32.
        values (torch.Tensor): ``(T, N)`` float32, the agent's, of the states.
        log_probs (torch.Tensor): ``(T, N)`` float32, the agent's, of the actions.
        done_flags (torch.Tensor): ``(T, N)`` int32: 1 where terminated.
        trunc_flags (torch.Tensor): ``(T, N)`` int32: 1 where truncated, and at the last step of an
            episode that was not over, whose environment is not reset.
        end_states: ``(E, *state_shape)``, the last state of each segment, environment by
            environment, in time order within each: what values are bootstrapped from. A segment
            is what a rollout has of an episode.
        ep_counts (torch.Tensor): ``(N,)`` int32, segments per environment.
        total_return (numpy.float32): the sum of all rewards.
        action_masks (torch.Tensor | None): ``(T, N, n)`` bool, those that the agent was given; None
            where it was given none.
        images (list[list[PIL.Image.Image]]): by environment, from
            :meth:`~xuance_envs.rollout.playing.RolloutLoop.test_agent`.
        halves: 1 or 2, as is done; ``"auto"`` as long as it is being tried.

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
        cls,
        vec_env: VecEnv,
        agent: Agent,
        steps_per_env: int,
        **options: Unpack[CollectorOptions],
    ) -> Self: ...

    def __new__(cls, vec_env: Any = None, *_: Any, **__: Any) -> Any:
        """One of many agents, where the environments have many."""
        many = cls is RolloutCollector and isinstance(vec_env, MultiAgentVecEnv)
        return super().__new__(MultiAgentRolloutCollector if many else cls)

    __new__.__signature__ = signature(RolloutLoop.__init__)  # type: ignore[attr-defined]  # for help


class MultiAgentRolloutCollector(RolloutCollector):
    """Has many agents play in many environments, and keeps what happens.

    It is what a :class:`RolloutCollector` of a
    :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv` is, and does all that one
    does, with the same arguments. Where tensors have a value for each agent, the agents' axis comes
    after that of the environments, which are A. Where that one has states, this one has dicts:
    ``"obs"`` of the agents, and ``"state"`` of the environments, where they have one; that goes for
    ``t_states``, ``state_space``, ``state_shape``, and what single steps and resets return. What
    a rollout leaves behind is apart, in ``obs`` and ``states``. Statistics are of the environments'
    episodes; a return is the mean of the agents'.

    Args:
        vec_env: the environments, whose agents have equal spaces; closed by ``close``.
        agent: chooses the actions; see :class:`~xuance_envs.rollout.agents.MultiAgent`.
        steps_per_env: steps of each environment in a rollout.
        **options: those of :class:`RolloutCollector`.

    Raises:
        TypeError: the environments have one agent each, or the agent is one for those.
        ValueError: agents have different spaces or are in groups, an argument is out of its range,
            or as :class:`RolloutCollector` has it.

    Attributes:
        obs: ``(T, N, A, *shape)`` of ``state_dtype``, what was acted on; for Dict and Tuple spaces
            dicts and tuples of such tensors. Neither these nor the states require grad.
        states: ``(T, N, *state_shape)``, of the environments, likewise; None without any.
        action_masks (torch.Tensor | None): ``(T, N, A, k)`` bool, of the actions; None where
            environments give none.
        actions (torch.Tensor): ``(T, N, A, *action_shape)``: float32 for Box, else int32.
        rewards (torch.Tensor): ``(T, N, A)`` float32.
        values (torch.Tensor): ``(T, N, A)`` float32.
        log_probs (torch.Tensor): ``(T, N, A)`` float32.
        acted (torch.Tensor): ``(T, N, A)`` bool: what is a transition; learn from nothing else.
        done_flags (torch.Tensor): ``(T, N, A)`` int32: 1 where an agent was terminated, or is dead
            though nothing said so.
        trunc_flags (torch.Tensor): ``(T, N, A)`` int32: 1 where one was truncated, and at the last
            step where one acted and plays on.
        end_obs: ``(E, A, *shape)``, last observations, environment by environment, in time order
            within each: of all steps in which an agent that acted has a flag, and of the last one.
        end_states: ``(E, *state_shape)``, the environments' states then; None without any.
        ep_counts (torch.Tensor): ``(N,)`` int32, how many of them each environment has.

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
        """``(N, A)`` bool: who acts in the next step."""
        return torch.tensor(self._envs.alive, device=self.device)

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
            ValueError: the agent's answer is not in order.
        """
        count = self._count_of_ends()
        masks, seen = self.action_masks, {"obs": self.end_obs, "state": self.end_states}
        if masks is not None:
            masks = masks.new_ones(count, *masks.shape[2:])
        with torch.no_grad():
            values = self._agent_outputs(seen, masks, count)[2].to(self.values.dtype)
            terminated = self.done_flags.bool() | ~self.acted
            ended = terminated | self.trunc_flags.bool()
            last = torch.zeros_like(self.values)
            seen_last = (ended & self.acted).any(dim=2)
            seen_last[-1] = True
            last.transpose(0, 1)[seen_last.t()] = values
            last.masked_fill_(terminated, 0.0)
            # What was no action is worth what was expected of it, so that nothing comes of it.
            worth = self.values.masked_fill(~self.acted & self.values.isnan(), 0.0)
            rewards = torch.where(self.acted, self.rewards, worth)
            ended = ended.flatten(1)
            advantages = generalized_advantages(
                rewards.flatten(1),
                worth.flatten(1),
                terminated.flatten(1),
                ended,
                checked_ends(last.flatten(1).t()[ended.t()]),
                gamma,
                gae_lambda,
            )
        return advantages.reshape(self.acted.shape)

    def _check_numbers(self, rollout: Rollout) -> None:
        *_, acted = rollout.results
        checked_numbers("values", rollout.values.masked_fill(~acted, 0.0))
        checked_numbers("log_probs", rollout.log_probs.masked_fill(~acted, 0.0))

    def _as_leaf(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def _set_results(self, rollout: Rollout, ends: SegmentEnds) -> None:
        super()._set_results(rollout, ends)
        self.obs, self.states = self.states["obs"], self.states.get("state")
        self.end_obs, self.end_states = self.end_states["obs"], self.end_states.get("state")
        *_, self.acted = rollout.results
