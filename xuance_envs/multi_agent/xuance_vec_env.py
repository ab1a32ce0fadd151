"""Base class of XuanCe's vectorized multi-agent environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStart, MultiAgentStep
from xuance_envs.vector_envs.aliases import ClosedOnExit, Uncopyable

_Dicts = list[dict[Any, Any]]


class XuanCeVecMultiAgentEnv(Uncopyable, ClosedOnExit):
    """Vectorized multi-agent environment with XuanCe's interface.

    Results are lists with one entry per environment, mostly dicts by agent. Each step returns new
    objects, which you may modify. If an episode ended, the step returns the episode's final
    results. The info then has ``reset_obs``, ``reset_avail_actions`` and ``reset_state`` of the
    next episode, in the form of the corresponding ``buf_*`` entries.

    A PettingZoo agent is reported as terminated in the step in which it terminates and while it is
    inactive, but not in the step in which it joins.

    Attributes:
        envs_of_agents (MultiAgentVecEnv): the wrapped environment, with arrays instead of lists.
        num_envs (int): number of environments.
        agents (list): ids of the agents.
        num_agents (int): number of agents.
        observation_space (dict): observation space of each agent.
        action_space (dict): action space of each agent.
        state_space (gymnasium.Space | None): space of an environment's state.
        env_info (dict): properties of the first environment, from its ``get_env_info()``.
        groups_info (dict): agent groups of the first environment, from its ``get_groups_info()``.
        max_episode_steps (int): step limit of the first environment; 1000 if it has none.
        buf_obs (list[dict]): the latest observations by agent, of each environment.
        buf_state (list): the latest state of each environment; None if there are no states.
        buf_avail_actions (list): the latest action masks by agent, of each environment; None if
            there are no masks.
        buf_info (list[dict]): the latest info of each environment.

    Raises:
        ValueError: rewards are vectors, or one of the reasons listed for ``MultiAgentVecEnv``.
    """

    def __init__(self, envs: MultiAgentVecEnv) -> None:
        if envs.reward_space is not None:
            envs.close()
            raise ValueError(
                f"{type(self).__name__}: expected agents whose rewards are numbers, got the "
                f"reward_space {envs.reward_space}; combine the components in a wrapper around "
                "each environment, or use MultiAgentVecEnv"
            )
        self.envs_of_agents = envs
        self.num_envs = envs.num_envs
        self.agents = list(envs.agents)
        self.num_agents = envs.num_agents
        self.observation_space = envs.observation_space
        self.action_space = envs.action_space
        self.state_space = envs.state_space
        self.max_episode_steps = envs.max_episode_steps
        ((self.env_info, self.groups_info),) = envs.call("xuance_infos", env_ids=[0])
        self.metadata = envs.metadata
        self.render_mode = envs.render_mode
        self.buf_obs: _Dicts = [{} for _ in range(self.num_envs)]
        self.buf_state: list[Any] = [None] * self.num_envs
        self.buf_avail_actions: list[Any] = [{} for _ in range(self.num_envs)]
        self.buf_info: _Dicts = [{} for _ in range(self.num_envs)]
        self._scores = np.zeros((self.num_envs, self.num_agents))
        self._steps = np.zeros(self.num_envs, np.int64)

    @property
    def closed(self) -> bool:
        """True once the vectorized environment is closed."""
        return self.envs_of_agents.closed

    @property
    def waiting(self) -> bool:
        """True while a step that :meth:`step_async` started is pending."""
        return self.envs_of_agents.waiting

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[_Dicts, _Dicts]:
        """Start a new episode in every environment; return the observations and the infos.

        Args:
            seed: as for
                :meth:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv.reset`, if the
                environments' ``reset`` accepts it.
            options: as ``seed``.

        Returns:
            ``(obs, infos)`` in the form of :meth:`step_wait`.
        """
        step = self.envs_of_agents.reset(seed=seed, options=options)
        self._scores[:] = self._steps[:] = 0
        self._take(step)
        return list(self.buf_obs), list(self.buf_info)

    def step(self, actions: Any) -> tuple[_Dicts, _Dicts, _Dicts, list[bool], _Dicts]:
        """Step every environment once: :meth:`step_async` followed by :meth:`step_wait`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step without waiting for it.

        Args:
            actions: list with one dict ``{agent: action}`` per environment. Actions of inactive
                agents may be missing; only XuanCe environments receive them. If ``num_envs`` is 1,
                the dict itself is accepted, too.

        Raises:
            ValueError: an action is invalid or missing. The step was not started.
            VecEnvError: as for :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step`.
        """
        if self.num_envs == 1 and isinstance(actions, Mapping):
            actions = [actions]
        self.envs_of_agents.step_async(list(actions))

    def step_wait(self) -> tuple[_Dicts, _Dicts, _Dicts, list[bool], _Dicts]:
        """Wait for the pending step.

        Returns:
            ``(obs, rewards, terminated, truncated, infos)``: lists with one entry per environment.
            ``truncated`` has bools. ``obs``, ``rewards`` (floats) and ``terminated`` (bools) have
            dicts by agent. ``infos`` has dicts with ``episode_step`` (int), ``state``, and three
            dicts by agent: ``episode_score``, ``agent_mask``, ``avail_actions``. XuanCe
            environments add their own keys.

        Raises:
            VecEnvError: as for :meth:`~xuance_envs.vector_envs.vector_env.VecEnv.step_wait`.
        """
        envs = self.envs_of_agents
        step = envs.step_wait()
        rewards = envs.exact_rewards
        self._scores += rewards
        self._steps += 1
        self._take(step)
        terminated = step.terminated
        if envs.is_parallel:
            ended, truncated_agents = step.ends()
            terminated = ended | ~(step.acted | step.alive | truncated_agents)
        truncated = (step.episode_over & step.truncated.any(axis=1)).tolist()
        if step.first is not None:
            self._add_reset_infos(step.first)
        dicts = self._dicts(rewards.tolist()), self._dicts(terminated.tolist())
        return list(self.buf_obs), *dicts, truncated, list(self.buf_info)

    def _take(self, step: MultiAgentStep) -> None:
        """Store the results of a step in ``buf_*``, as lists of dicts."""
        self.buf_obs, self.buf_avail_actions, self.buf_state = self._inputs(step)
        masks = self._dicts(self.envs_of_agents.agent_mask.tolist())
        if self.envs_of_agents.is_parallel or step.infos.are_empty:
            infos: _Dicts = [{} for _ in range(self.num_envs)]
        else:
            infos = list(step.infos)
        scores, counts = self._dicts(self._scores.tolist()), self._steps.tolist()
        rows = zip(  # noqa: B905  # equal lengths, and strict=True is slower
            infos, counts, scores, masks, self.buf_avail_actions, self.buf_state
        )
        for info, count, score, mask, actions, state in rows:
            info["episode_step"] = count
            info["episode_score"] = score
            info["agent_mask"] = mask
            info["avail_actions"] = actions
            info["state"] = state
        self.buf_info = infos

    def _add_reset_infos(self, first: MultiAgentStart) -> None:
        """Add the start of the next episodes to the infos."""
        envs = first.env_ids
        for env, obs, masks, state in zip(envs.tolist(), *self._inputs(first), strict=True):
            new = {"reset_obs": obs, "reset_avail_actions": masks, "reset_state": state}
            self.buf_info[env].update(new)
        self._scores[envs] = self._steps[envs] = 0

    def _inputs(
        self, step: MultiAgentStep | MultiAgentStart
    ) -> tuple[_Dicts, list[Any], list[Any]]:
        """Return the observations, action masks and states of the environments."""
        count = len(step.env_ids)
        masks: list[Any] = [None] * count
        states = masks.copy() if step.state is None else _split(step.state, count)
        if step.action_masks is not None:
            masks = self._by_agent(step.action_masks, count)
        return self._by_agent(step.obs, count), masks, states

    def _dicts(self, rows: Iterable[Iterable[Any]]) -> _Dicts:
        agents = self.agents
        return [dict(zip(agents, row)) for row in rows]  # noqa: B905  # as above

    def _by_agent(self, batch: Any, count: int) -> _Dicts:
        """Convert a batch to a list with a dict ``{agent: value}`` for each environment."""
        if self.envs_of_agents.is_one:
            return self._dicts(_rows(batch, count, len(self.agents)))
        members = {name: self.envs_of_agents.groups[name] for name in batch}
        parts = [_rows(batch[name], count, len(agents)) for name, agents in members.items()]
        agents = [*chain(*members.values())]
        found = [dict(zip(agents, chain(*row), strict=True)) for row in zip(*parts, strict=True)]
        order = [agent for agent in self.agents if agent in agents]
        return [{agent: values[agent] for agent in order} for values in found]

    def render(self, mode: str | None = None) -> list[Any]:
        """Render every environment; pass ``mode`` to those whose ``render`` accepts it."""
        return self.envs_of_agents.render(mode)

    def close(self) -> None:
        """Close all environments and release resources. Calling ``close`` again does nothing."""
        self.envs_of_agents.close()

    close_extras = close


def _rows(batch: Any, envs: int, agents: int) -> Iterable[Any]:
    """Return the values of all agents, for each environment."""
    if isinstance(batch, np.ndarray):
        return batch
    return [_split(row, agents) for row in _split(batch, envs)]


def _split(batch: Any, count: int) -> list[Any]:
    """Split a batch along its first axis, whose length an empty dict or tuple doesn't tell."""
    if not isinstance(batch, dict | tuple):
        return list(batch)
    parts = batch.values() if isinstance(batch, dict) else batch
    rows = list(zip(*[_split(part, count) for part in parts], strict=True)) or [()] * count
    return [dict(zip(batch, row, strict=True)) for row in rows] if isinstance(batch, dict) else rows
