"""Adapters of single-agent and multi-agent vec envs for the agent loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout, StepSpaces
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStart, MultiAgentStep
from xuance_envs.multi_agent.xuance import XuanCeVecMultiAgentEnv
from xuance_envs.rollout.agents import check_agent, check_plays_many, takes_masks
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import checked_weights
from xuance_envs.vector_envs.vector_env import StepBatch, VecEnv

Scalarize = ArrayLike | Callable[[NDArray[Any]], Any]
"""Weights of the components of vector rewards, or a function of rewards ``(n, k)``."""


EpisodeEnd = tuple[int, Any, Mapping[Any, Any], bool]
"""Position, next episode's first observation, last info, and True if the episode was truncated."""


class LoopStep(NamedTuple):
    """Results of a step of n environments, indexed by their position in the batch."""

    obs: Any
    results: tuple[NDArray[Any], ...]
    ended: NDArray[np.bool_]
    segment_ends: NDArray[np.intp]
    ends: list[EpisodeEnd]


def scalarization(
    scalarize: Scalarize | None, reward_space: spaces.Box | None
) -> tuple[spaces.Box | None, Callable[[NDArray[Any]], NDArray[np.float32]] | None]:
    """Return the reward space after scalarization, and the function that scalarizes rewards."""
    if scalarize is None:
        return reward_space, None
    if not callable(scalarize):
        weights = checked_weights("scalarize", scalarize, reward_space)
        return None, lambda rewards: as_float32((rewards * weights).sum(axis=-1))
    if reward_space is None:
        raise ValueError("scalarize: expected None, because rewards are numbers, got a function")

    def scalar_rewards(rewards: NDArray[Any]) -> NDArray[np.float32]:
        made = np.asarray(scalarize(rewards.copy()))
        if made.shape != rewards.shape[:-1] or made.dtype.kind not in "biuf":
            raise ValueError(
                f"scalarize: expected numbers of shape {rewards.shape[:-1]} for rewards of shape "
                f"{rewards.shape}, got shape {made.shape} and dtype {made.dtype}"
            )
        return as_float32(made)

    return None, scalar_rewards


class SingleAgentEnvs:
    leading_axes: Sequence[int] = ()
    team: tuple[int, ...] = ()

    def __init__(self, vec_env: Any, agent: Any, scalarize: Scalarize | None = None) -> None:
        if not isinstance(vec_env, VecEnv):
            raise TypeError(
                "vec_env: expected a VecEnv of single-agent environments, got "
                f"{type(vec_env).__name__}" + _conversion_hint(vec_env)
            )
        check_agent(agent)
        self.vec_env = vec_env
        self.gives_masks, self._needs_masks = takes_masks(agent)
        reward_space, self._scalar_rewards = scalarization(scalarize, vec_env.reward_space)
        self.spaces = StepSpaces(vec_env.observation_space, vec_env.action_space, reward_space)

    def reset(self, **given: Any) -> Any:
        """Reset all or some environments and return their observations."""
        return self.vec_env.reset(**given)[0]

    def step_wait(self) -> LoopStep:
        return self._loop_step(self.vec_env.step_wait())

    def recv(self, min_envs: int) -> tuple[NDArray[np.intp], LoopStep]:
        """Wait for some environments; return their indices and results."""
        batch: StepBatch = self.vec_env.recv(min_envs=min_envs)
        return batch.env_ids, self._loop_step(batch[:5])

    def _loop_step(self, step: tuple[Any, ...]) -> LoopStep:
        observations, rewards, terminated, truncated, infos = step
        if self._scalar_rewards is not None:
            rewards = self._scalar_rewards(rewards)
        ended = terminated | truncated
        (segment_ends,) = ended.nonzero()
        ends = []
        for place in segment_ends.tolist():
            info = infos[place]
            ends.append((place, info["reset_obs"], info, bool(truncated[place])))
        return LoopStep(observations, (rewards, terminated, truncated), ended, segment_ends, ends)

    def load_state(self, state: EnvStates) -> None:
        self.vec_env.load_state(state)

    def masks(self) -> NDArray[np.bool_] | None:
        """Return the next step's action masks, if the agent accepts them."""
        if not self.gives_masks:
            return None
        try:
            masks: NDArray[np.bool_] = self.vec_env.action_masks()
        except (AttributeError, NotImplementedError):
            if self._needs_masks:
                raise
            self.gives_masks = False
            return None
        self._needs_masks = True  # a rollout has the masks of all steps or none
        return masks


def _conversion_hint(given: Any) -> str:
    """Return a hint on how to convert the given object to a VecEnv."""
    if isinstance(given, VectorEnv):
        return (
            ": wrap it with xuance_envs.compat.from_gymnasium, or use DummyVecEnv_Gym or "
            "SubprocVecEnv_Gym"
        )
    if isinstance(given, MultiAgentVecEnv):
        return ": pass it to RolloutCollector, or derive from MultiAgentRolloutCollector"
    if isinstance(given, XuanCeVecMultiAgentEnv):
        return ": pass its envs_of_agents to RolloutCollector"
    return ""


class MultiAgentEnvs:
    """Adapter of a multi-agent vec env; observations have ``"obs"`` and perhaps ``"state"``."""

    def __init__(self, vec_env: Any, agent: Any, scalarize: Scalarize | None = None) -> None:
        if not isinstance(vec_env, MultiAgentVecEnv):
            raise TypeError(
                f"vec_env: expected a MultiAgentVecEnv, got {type(vec_env).__name__}: use "
                "RolloutCollector for single-agent environments"
            )
        if not vec_env.is_one:
            raise ValueError(
                "vec_env: expected agents with equal spaces and no groups, got the groups "
                f"{vec_env.groups} with {vec_env.observation_space}: pad different spaces with a "
                "wrapper around each environment"
            )
        check_agent(agent)
        check_plays_many(agent)
        if scalarize is None and vec_env.reward_space is not None:
            raise ValueError(
                "vec_env: expected agents whose rewards are numbers, got the reward_space "
                f"{vec_env.reward_space}: pass weights or a function as scalarize"
            )
        reward_space, self._scalar_rewards = scalarization(scalarize, vec_env.reward_space)
        self.vec_env = vec_env
        self.team = (vec_env.num_agents,)
        one = vec_env.agents[0]
        observation_space = vec_env.observation_space[one]
        seen: dict[str, Space[Any]] = {"obs": batch_space(observation_space, vec_env.num_agents)}
        self.leading_axes = [1] * len(SpaceLayout(observation_space).leaves)
        if vec_env.state_space is not None:
            seen["state"] = vec_env.state_space
            self.leading_axes += [0] * len(SpaceLayout(vec_env.state_space).leaves)
        self._space = spaces.Dict(seen)
        self._layout = SpaceLayout(self._space)
        self.spaces = StepSpaces(self._space, vec_env.action_space[one], reward_space)
        self.gives_masks = False
        # Agents that act next.
        self.alive = np.zeros((vec_env.num_envs, vec_env.num_agents), np.bool_)
        self._masks: Any = None

    def reset(self, **given: Any) -> Any:
        return self._observed(self.vec_env.reset(**given))

    def step_wait(self) -> LoopStep:
        return self._loop_step(self.vec_env.step_wait())

    def recv(self, min_envs: int) -> tuple[NDArray[np.intp], LoopStep]:
        step = self.vec_env.recv(min_envs=min_envs)
        return step.env_ids, self._loop_step(step)

    def load_state(self, state: EnvStates) -> None:
        self._observed(self.vec_env.load_state(state))

    def masks(self) -> NDArray[np.bool_] | None:
        """Return the next step's action masks, if the environments provide them."""
        return self._masks.copy() if self.gives_masks else None

    def _observed(self, here: MultiAgentStart | MultiAgentStep) -> dict[str, Any]:
        """Record which agents act next, and their action masks; return the observations."""
        self.alive[here.env_ids] = here.alive
        masks = here.action_masks
        if masks is not None:
            if not self.gives_masks:
                self.gives_masks = True
                self._masks = np.ones((self.vec_env.num_envs, *masks.shape[1:]), np.bool_)
            self._masks[here.env_ids] = masks
        return {name: getattr(here, name) for name in self._space}

    def _loop_step(self, step: MultiAgentStep) -> LoopStep:
        acted = step.acted
        terminated, truncated = step.ends()
        segment_ends = np.flatnonzero(((terminated | truncated) & acted).any(axis=1))
        obs = self._observed(step)
        ends: list[EpisodeEnd] = []
        if step.first is not None:
            parts = self._layout.flatten(self._observed(step.first))
            for k, place in enumerate(step.env_ids.searchsorted(step.first.env_ids).tolist()):
                first = self._layout.unflatten([part[k] for part in parts])
                ends.append((place, first, {}, bool(truncated[place].any())))
        rewards = step.rewards
        if self._scalar_rewards is not None:
            rewards = self._scalar_rewards(rewards)
        results = rewards, terminated, truncated, acted
        return LoopStep(obs, results, step.episode_over, segment_ends, ends)
