"""XuanCe's classes for single multi-agent environments."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import Space

from xuance_envs.extras import how_to_install

__all__ = ["MPE_Env", "MultiAgentEnv", "RawMultiAgentEnv", "XuanCeMultiAgentEnvWrapper"]


class RawMultiAgentEnv(ABC):
    """Base class of multi-agent environments in XuanCe.

    Set the attributes in ``__init__``, and define ``reset`` and ``step``.

    Attributes:
        agents (list[str]): ids of the agents.
        num_agents (int): number of agents.
        observation_space (dict): observation space of each agent.
        action_space (dict): action space of each agent.
        state_space (gymnasium.Space | None): space of the global state; None if there is none.
        agent_groups (list[list[str]]): agents of each group.
        max_episode_steps (int): step limit of an episode.

    Example:
        >>> import numpy as np
        >>> from gymnasium.spaces import Box, Discrete
        >>> from xuance_envs import DummyVecMultiAgentEnv, RawMultiAgentEnv
        >>> class Pair(RawMultiAgentEnv):
        ...     def __init__(self, env_seed=None):
        ...         super().__init__()
        ...         self.agents, self.num_agents, self.max_episode_steps = ["red", "blue"], 2, 10
        ...         self.observation_space = {agent: Box(0, 10, (1,)) for agent in self.agents}
        ...         self.action_space = {agent: Discrete(2) for agent in self.agents}
        ...     def reset(self):
        ...         self.time = 0
        ...         return self.observe(), {}
        ...     def observe(self):
        ...         return {agent: np.array([self.time], np.float32) for agent in self.agents}
        ...     def step(self, actions):
        ...         self.time += 1
        ...         rewards = {agent: float(action) for agent, action in actions.items()}
        ...         terminated = {agent: False for agent in self.agents}
        ...         return self.observe(), rewards, terminated, self.time == 10, {}
        >>> with DummyVecMultiAgentEnv([Pair] * 2) as envs:
        ...     obs, infos = envs.reset()
        ...     obs, rewards, *_ = envs.step([{"red": 1, "blue": 0}] * 2)
        >>> obs[1]["red"], rewards[0]
        (array([1.], dtype=float32), {'red': 1.0, 'blue': 0.0})
    """

    agents: list[Any]
    num_agents: int
    observation_space: dict[Any, Space[Any]]
    action_space: dict[Any, Space[Any]]
    max_episode_steps: int
    state_space: Space[Any] | None = None
    render_mode: str | None = None
    metadata: Mapping[str, Any] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.env: Any = None
        self.agent_groups: list[list[Any]] = []

    def get_env_info(self) -> dict[str, Any]:
        """Return the environment's spaces, agents and step limit, by attribute name."""
        names = ("state_space", "observation_space", "action_space", "agents", "num_agents")
        return {name: getattr(self, name) for name in (*names, "max_episode_steps")}

    def get_groups_info(self) -> dict[str, Any]:
        """Return the agents and spaces of each group, in XuanCe's format."""
        groups, observed, acting = self.agent_groups, self.observation_space, self.action_space
        return {
            "num_groups": len(groups),
            "agent_groups": groups,
            "observation_space_groups": [{agent: observed[agent] for agent in g} for g in groups],
            "action_space_groups": [{agent: acting[agent] for agent in g} for g in groups],
            "num_agents_groups": [len(group) for group in groups],
        }

    def agent_mask(self) -> dict[Any, bool]:
        """Return a bool by agent: True for active agents."""
        return dict.fromkeys(self.agents, True)

    def avail_actions(self) -> dict[Any, Any] | None:
        """Return the action mask of each agent, ``(n,)`` bool; None if there are no masks.

        By default, all actions are allowed; there are no masks if a space has no ``n``.
        """
        sizes = {agent: getattr(self.action_space[agent], "n", None) for agent in self.agents}
        if any(size is None for size in sizes.values()):
            return None
        return {agent: np.ones(size, np.bool_) for agent, size in sizes.items()}

    def state(self) -> Any:
        """Return the global state; define this method unless ``state_space`` is None."""
        raise NotImplementedError(
            f"{type(self).__name__} has no state: define state(), or set state_space = None"
        )

    @abstractmethod
    def reset(self, **kwargs: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Start an episode.

        Args:
            **kwargs: ``seed`` (int) and ``options`` (dict), each only if it is given.

        Returns:
            ``(observations, info)``: a dict by agent, and a dict.
        """

    @abstractmethod
    def step(
        self, actions: dict[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, float], dict[Any, bool], bool, dict[Any, Any]]:
        """Step the environment.

        Args:
            actions: one action for each active agent, by agent.

        Returns:
            ``(observations, rewards, terminated, truncated, info)``: three dicts by agent
            (observations, floats, bools), one bool for the whole episode, and a dict.
        """

    def render(self, *args: Any) -> Any:
        """Render the environment; subclasses may override this."""
        raise NotImplementedError(f"{type(self).__name__} does not define render()")

    def close(self) -> None:  # noqa: B027  # optional for subclasses
        """Close the environment."""


class XuanCeMultiAgentEnvWrapper:
    """Wrapper that adds scores, masks and the state to infos, as XuanCe does.

    The wrapper looks up missing attributes in the environment. Vectorized environments return
    the same results for wrapped and unwrapped environments.

    Args:
        env: the environment.
        **kwargs: ignored.

    Example:
        >>> from xuance_envs import MPE_Env, XuanCeMultiAgentEnvWrapper
        >>> env = XuanCeMultiAgentEnvWrapper(MPE_Env("simple_v3", env_seed=1))
        >>> observations, info = env.reset()
        >>> info["episode_step"], info["agent_mask"], info["state"].shape
        (0, {'agent_0': True}, (4,))
    """

    def __init__(self, env: Any, **kwargs: Any) -> None:
        self.env: RawMultiAgentEnv = env
        self.env_info = env.get_env_info()
        self.groups_info = env.get_groups_info()
        self._episode_step = 0
        self._episode_score: dict[Any, float] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # during unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The wrapped environment."""
        return self.env

    @property
    def state(self) -> Any:
        """The global state, in ``state_space``."""
        return self.env.state()

    @property
    def agent_mask(self) -> dict[Any, bool]:
        """Active agents: a bool by agent."""
        return self.env.agent_mask()

    @property
    def avail_actions(self) -> dict[Any, Any] | None:
        """Action masks by agent; None if there are none."""
        return self.env.avail_actions()

    def reset(self, **kwargs: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Start an episode; the arguments are those of the environment's ``reset``.

        Returns:
            ``(observations, info)`` of the environment. The info also has ``episode_step`` (int),
            ``episode_score`` (sums of rewards by agent), ``agent_mask``, ``avail_actions`` and
            ``state`` (None without a ``state_space``).
        """
        observations, info = self.env.reset(**kwargs)
        self._episode_step = 0
        self._episode_score = dict.fromkeys(self.env.agents, 0.0)
        return observations, self._with_episode_info(info)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, dict[Any, Any]]:
        """Step the environment; ``actions`` has one action per agent.

        Returns:
            The results of the environment's ``step``. The info also has the keys that :meth:`reset`
            adds.
        """
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        self._episode_step += 1
        for agent, reward in rewards.items():
            self._episode_score[agent] += reward
        return observations, rewards, terminated, truncated, self._with_episode_info(info)

    def _with_episode_info(self, info: Mapping[Any, Any]) -> dict[Any, Any]:
        return {
            **info,
            "episode_step": self._episode_step,
            "episode_score": dict(self._episode_score),
            "agent_mask": self.agent_mask,
            "avail_actions": self.avail_actions,
            "state": None if self.env.state_space is None else self.state,
        }


MultiAgentEnv = XuanCeMultiAgentEnvWrapper


class MPE_Env(RawMultiAgentEnv):
    """Multi-agent particle environment of ``mpe2``, formerly in PettingZoo.

    Args:
        config: id of the environment, or a XuanCe configuration: an object with ``env_id``,
            ``env_seed``, ``render_mode`` and ``continuous_action``.
        env_seed: seed with which the constructor resets the environment. Later resets without a
            seed continue the random stream.
        render_mode: render mode of the environment.
        continuous_action: True for continuous actions, which are clipped to their space.
        **options: further arguments for the environment.

    Raises:
        ImportError: neither ``mpe2`` nor ``pettingzoo.mpe`` has this environment.

    Example:
        >>> from xuance_envs import MPE_Env
        >>> env = MPE_Env("simple_spread_v3", env_seed=1)
        >>> observations, info = env.reset()
        >>> env.agents, observations["agent_0"].shape, env.max_episode_steps
        (['agent_0', 'agent_1', 'agent_2'], (18,), 25)
    """

    def __init__(
        self,
        config: Any = "simple_spread_v3",
        env_seed: int | None = None,
        render_mode: str | None = None,
        continuous_action: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        env_id = config
        if not isinstance(config, str):
            env_id, env_seed = config.env_id, config.env_seed
            render_mode, continuous_action = config.render_mode, config.continuous_action
        self.continuous_actions = continuous_action
        self.render_mode = render_mode
        self.env = _module_of(env_id).parallel_env(
            continuous_actions=continuous_action, render_mode=render_mode, **options
        )
        self.env.reset(seed=env_seed)
        self.metadata = self.env.metadata
        self.agents = list(self.env.agents)
        self.num_agents = len(self.agents)
        self.observation_space = {agent: self.env.observation_space(agent) for agent in self.agents}
        self.action_space = {agent: self.env.action_space(agent) for agent in self.agents}
        self.state_space = self.env.state_space
        if "simple_push" in env_id or "simple_adversary" in env_id:
            self.agent_groups = [
                [agent for agent in self.agents if agent.startswith(kind)]
                for kind in sorted(("adversary", "agent"), reverse="simple_push" in env_id)
            ]
        self.max_episode_steps = self.env.unwrapped.max_cycles
        self._episode_step = 0

    def reset(self, seed: int | None = None, **kwargs: Any) -> tuple[Any, dict[Any, Any]]:
        """Start an episode; a seed of None continues the environment's random stream.

        Returns:
            ``(observations, info)``: a dict by agent, and an empty dict.
        """
        observations, _ = self.env.reset(seed=seed, **kwargs)
        self._episode_step = 0
        return observations, {}

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, bool, dict[Any, Any]]:
        """Step the environment; ``actions`` has one action per agent and is not modified.

        Returns:
            ``(observations, rewards, terminated, truncated, info)`` in the form of
            :meth:`RawMultiAgentEnv.step`. An episode is truncated after ``max_episode_steps``
            steps.
        """
        if self.continuous_actions:
            boxes: dict[Any, Any] = self.action_space
            actions = {a: np.clip(x, boxes[a].low, boxes[a].high) for a, x in actions.items()}
        observations, rewards, terminated, _, _ = self.env.step(actions)
        self._episode_step += 1
        truncated = self._episode_step >= self.max_episode_steps
        return observations, rewards, terminated, truncated, {}

    def state(self) -> Any:
        """Return the global state, an array in ``state_space``: all agents' observations."""
        return self.env.state()

    def render(self, *args: Any) -> Any:
        """Render the environment in its ``render_mode``; arguments are ignored."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _module_of(env_id: str) -> Any:
    for package in ("mpe2", "pettingzoo.mpe"):
        with suppress(ImportError):
            return importlib.import_module(f"{package}.{env_id}")
    raise ImportError(
        f"environment {env_id!r} was found neither in mpe2 nor in pettingzoo.mpe: check the id, or "
        f"install mpe2 ({how_to_install('multi-agent', 'mpe2')})"
    )
