"""XuanCe's names for environments with many agents: many of them, in lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStart, MultiAgentStep

__all__ = [
    "DummyVecEnv_Football",
    "DummyVecEnv_StarCraft2",
    "DummyVecMultiAgentEnv",
    "SubprocVecEnv_Football",
    "SubprocVecEnv_StarCraft2",
    "SubprocVecMultiAgentEnv",
    "XuanCeVecMultiAgentEnv",
]

V = TypeVar("V", bound="XuanCeVecMultiAgentEnv")

_Dicts = list[dict[Any, Any]]


class XuanCeVecMultiAgentEnv:
    """Many environments with many agents, in XuanCe's form.

    All that comes of a step is lists with an entry for each environment, mostly dicts by agent.
    They are new ones at each step, and yours to write into. Where an episode ended, the info has
    ``reset_obs``, ``reset_avail_actions`` and ``reset_state``, and what is returned is the last
    of the episode that ended.

    An agent of PettingZoo's that has ended counts as terminated until the episode is over.

    Args:
        envs: the environments.

    Attributes:
        envs_of_agents (MultiAgentVecEnv): the environments, with arrays in place of lists.
        num_envs (int): number of environments.
        agents (list): the agents' ids.
        num_agents (int): how many there are.
        observation_space (dict): of each agent.
        action_space (dict): of each agent.
        state_space (gymnasium.Space | None): of an environment's state.
        env_info (dict): what the first environment says of itself.
        groups_info (dict): what it says of its agents' groups.
        max_episode_steps (int): the first environment's limit.
        buf_obs (list[dict]): the last observations.
        buf_state (list): the last states.
        buf_avail_actions (list): the last masks of actions.
        buf_info (list[dict]): the last infos.
    """

    def __init__(self, envs: MultiAgentVecEnv) -> None:
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
        """Whether it has been closed."""
        return self.envs_of_agents.closed

    @property
    def waiting(self) -> bool:
        """Whether a step is pending."""
        return self.envs_of_agents.waiting

    def reset(self, **given: Any) -> tuple[_Dicts, _Dicts]:
        """Starts a new episode in every environment.

        Args:
            **given: ``seed`` and ``options``, as
                :meth:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv.reset` takes
                them, for environments whose ``reset`` does.

        Returns:
            The observations and the infos.
        """
        step = self.envs_of_agents.reset(**given)
        self._scores[:], self._steps[:] = 0, 0
        self._take(step, self.envs_of_agents.agent_mask)
        return list(self.buf_obs), list(self.buf_info)

    def step(self, actions: Any) -> tuple[_Dicts, _Dicts, _Dicts, list[bool], _Dicts]:
        """Steps every environment once: :meth:`step_async`, then :meth:`step_wait`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Starts a step.

        Args:
            actions: a list with a dict by agent for each environment; with one environment also
                its dict.
        """
        if self.num_envs == 1 and isinstance(actions, Mapping):
            actions = [actions]
        self.envs_of_agents.step_async(list(actions))

    def step_wait(self) -> tuple[_Dicts, _Dicts, _Dicts, list[bool], _Dicts]:
        """Waits for the step that was started.

        Returns:
            ``(obs, rewards, terminated, truncated, infos)``: lists with an entry for each
            environment; all but ``truncated`` have dicts.
        """
        envs = self.envs_of_agents
        step = envs.step_wait()
        rewards = envs.exact_rewards
        self._scores += rewards
        self._steps += 1
        self._take(step, envs.agent_mask)
        terminated = (
            step.terminated | ~(step.acted | step.alive) if envs.is_parallel else (step.terminated)
        )
        truncated = (step.episode_over & step.truncated.any(axis=1)).tolist()
        if step.first is not None:
            self._add_reset_infos(step.first)
        dicts = self._dicts
        infos = list(self.buf_info)
        return (
            list(self.buf_obs),
            dicts(rewards.tolist()),
            dicts(terminated.tolist()),
            truncated,
            infos,
        )

    def _take(self, step: MultiAgentStep, agent_mask: NDArray[np.bool_]) -> None:
        """Makes the last lists of what came of a step."""
        self.buf_obs = self._by_agent(step.obs)
        self.buf_state = [None] * self.num_envs if step.state is None else list(step.state)
        self.buf_avail_actions = self._masks(step)
        scores, masks = self._dicts(self._scores.tolist()), self._dicts(agent_mask.tolist())
        infos: list[dict[Any, Any]]
        if self.envs_of_agents.is_parallel or step.infos.are_empty:
            infos = [{} for _ in range(self.num_envs)]
        else:
            infos = list(step.infos)
        rows = zip(  # noqa: B905  # as many, and it costs
            infos, self._steps.tolist(), scores, masks, self.buf_avail_actions, self.buf_state
        )
        for info, count, score, mask, actions, state in rows:
            info["episode_step"] = count
            info["episode_score"] = score
            info["agent_mask"] = mask
            info["avail_actions"] = actions
            info["state"] = state
        self.buf_info = infos

    def _add_reset_infos(self, first: MultiAgentStart) -> None:
        """Adds what the next episodes start from to the infos of those that ended."""
        observations = self._by_agent(first.obs)
        masks = self._masks(first)
        for k, env in enumerate(first.env_ids.tolist()):
            info = self.buf_info[env]
            info["reset_obs"] = observations[k]
            info["reset_avail_actions"] = masks[k]
            info["reset_state"] = None if first.state is None else first.state[k]
        self._scores[first.env_ids] = 0
        self._steps[first.env_ids] = 0

    def _masks(self, step: MultiAgentStep | MultiAgentStart) -> list[Any]:
        if step.action_mask is None:
            return [None] * len(step.env_ids)
        return self._by_agent(step.action_mask)

    def _dicts(self, rows: Iterable[Iterable[Any]]) -> _Dicts:
        agents = self.agents
        return [dict(zip(agents, row)) for row in rows]  # noqa: B905  # as many, and it costs

    def _by_agent(self, batch: Any) -> _Dicts:
        """A batch as a dict by agent for each environment."""
        groups = self.envs_of_agents.groups
        if self.envs_of_agents.is_one:
            return self._dicts(_rows(batch))
        found: _Dicts = []
        for name, agents in groups.items():
            for i, row in enumerate(_rows(batch[name]) if name in batch else ()):
                if i == len(found):
                    found.append({})
                found[i].update(zip(agents, row, strict=True))
        order = [agent for agent in self.agents if found and agent in found[0]]
        return [{agent: dicts[agent] for agent in order} for dicts in found]

    def render(self, mode: str | None = None) -> list[Any]:
        """Renders every environment.

        Args:
            mode: passed to those environments whose ``render`` takes a mode.
        """
        return self.envs_of_agents.render(mode)

    def close(self) -> None:
        """Closes every environment; again, it does nothing."""
        self.envs_of_agents.close()

    close_extras = close

    def __enter__(self: V) -> V:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _rows(batch: Any) -> Iterable[Any]:
    """The agents' values of each environment."""
    if isinstance(batch, dict):
        parts = [_rows(part) for part in batch.values()]
        return [
            [dict(zip(batch, values, strict=True)) for values in zip(*rows, strict=True)]
            for rows in zip(*parts, strict=True)
        ]
    if isinstance(batch, tuple):
        return [list(zip(*rows, strict=True)) for rows in zip(*map(_rows, batch), strict=True)]
    rows: Iterable[Any] = batch
    return rows


class DummyVecMultiAgentEnv(XuanCeVecMultiAgentEnv):
    """Many environments with many agents in this process, as XuanCe calls it.

    Args:
        env_fns: callables that make one environment each.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        **options: for :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv`.

    Example:
        >>> from xuance_envs import DummyVecMultiAgentEnv, MPE_Env
        >>> with DummyVecMultiAgentEnv([MPE_Env] * 2, env_seed=1) as envs:
        ...     obs, infos = envs.reset()
        ...     actions = [{agent: 1 for agent in envs.agents}] * 2
        ...     obs, rewards, terminated, truncated, infos = envs.step(actions)
        >>> obs[0]["agent_0"].shape, terminated[1], truncated
        ((18,), {'agent_0': False, 'agent_1': False, 'agent_2': False}, [False, False])
    """

    def __init__(
        self, env_fns: Iterable[Callable[..., Any]], env_seed: int | None = None, **options: Any
    ) -> None:
        super().__init__(MultiAgentVecEnv(env_fns, env_seed, backend="dummy", **options))

    @property
    def envs(self) -> list[Any]:
        """The environments, in a list of their own; empty once closed."""
        (*environments,) = self.envs_of_agents.environments
        return environments


class SubprocVecMultiAgentEnv(XuanCeVecMultiAgentEnv):
    """Many environments with many agents in worker processes, as XuanCe calls it.

    Args:
        env_fns: callables that make one environment each, in the process where it will live.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        context: how workers start: ``"spawn"``, ``"forkserver"`` or ``"fork"``.
        in_series: environments per worker; ``"auto"`` makes one worker per CPU.
        **options: for :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv` and
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`.

    Example:
        >>> from xuance_envs import MPE_Env, SubprocVecMultiAgentEnv
        >>> with SubprocVecMultiAgentEnv([lambda: MPE_Env("simple_tag_v3")] * 2) as envs:
        ...     obs, infos = envs.reset()
        >>> [shape.shape for shape in obs[1].values()], infos[1]["state"].shape
        ([(16,), (16,), (16,), (14,)], (62,))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        context: str = "spawn",
        in_series: int | str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(
            MultiAgentVecEnv(
                env_fns,
                env_seed,
                backend="subproc",
                context=context,
                in_series=in_series,
                **options,
            )
        )


class _Battles(XuanCeVecMultiAgentEnv):
    """What environments in which teams fight have besides: how many battles were won."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.battles_game = np.zeros(self.num_envs, np.int32)
        self.battles_won = np.zeros(self.num_envs, np.int32)

    def _add_reset_infos(self, first: MultiAgentStart) -> None:
        super()._add_reset_infos(first)
        for env in first.env_ids.tolist():
            self.battles_game[env] += 1
            self._count(env, self.buf_info[env])

    def _count(self, env: int, info: Mapping[str, Any]) -> None:
        """Counts what came of a battle; one that was lost with its worker has no info of it."""
        raise NotImplementedError


class _StarCraft2(_Battles):
    """The battles of StarCraft II.

    Attributes:
        num_enemies (int): how many there are.
        battles_game (numpy.ndarray): by environment, how many episodes have ended.
        battles_won (numpy.ndarray): how many of them were won.
        dead_allies_count (numpy.ndarray): how many of one's own died in them.
        dead_enemies_count (numpy.ndarray): how many of the others.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_enemies = self.env_info["num_enemies"]
        self.dead_allies_count = np.zeros(self.num_envs, np.int32)
        self.dead_enemies_count = np.zeros(self.num_envs, np.int32)

    def _count(self, env: int, info: Mapping[str, Any]) -> None:
        self.battles_won[env] += bool(info.get("battle_won"))
        self.dead_allies_count[env] += info.get("dead_allies", 0)
        self.dead_enemies_count[env] += info.get("dead_enemies", 0)


class _Football(_Battles):
    """The matches of football.

    Attributes:
        num_adversaries (int): how many there are.
        battles_game (numpy.ndarray): by environment, how many episodes have ended.
        battles_won (numpy.ndarray): how many of them ended with a goal.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_adversaries = self.env_info["num_adversaries"]

    def _count(self, env: int, info: Mapping[str, Any]) -> None:
        self.battles_won[env] += info.get("score_reward", 0) > 0


class DummyVecEnv_StarCraft2(_StarCraft2, DummyVecMultiAgentEnv):
    """``DummyVecMultiAgentEnv`` with the counts of StarCraft II's battles.

    Example:
        >>> from xuance_envs import MPE_Env, DummyVecEnv_StarCraft2
        >>> class Skirmish(MPE_Env):
        ...     def get_env_info(self):
        ...         return {**super().get_env_info(), "num_enemies": 5}
        ...     def step(self, actions):
        ...         *result, _ = super().step(actions)
        ...         return *result, {"battle_won": 1, "dead_allies": 0, "dead_enemies": 5}
        >>> with DummyVecEnv_StarCraft2([lambda: Skirmish("simple_v3")] * 2) as envs:
        ...     _ = envs.reset()
        ...     for _ in range(25):
        ...         _ = envs.step([{"agent_0": 0}] * 2)
        >>> envs.battles_game, envs.battles_won
        (array([1, 1], dtype=int32), array([1, 1], dtype=int32))
    """


class SubprocVecEnv_StarCraft2(_StarCraft2, SubprocVecMultiAgentEnv):
    """``SubprocVecMultiAgentEnv`` with the counts of StarCraft II's battles.

    Example:
        >>> from xuance_envs import MPE_Env, SubprocVecEnv_StarCraft2
        >>> class Skirmish(MPE_Env):
        ...     def get_env_info(self):
        ...         return {**super().get_env_info(), "num_enemies": 5}
        ...     def step(self, actions):
        ...         *result, _ = super().step(actions)
        ...         return *result, {"battle_won": 1, "dead_allies": 0, "dead_enemies": 5}
        >>> with SubprocVecEnv_StarCraft2([lambda: Skirmish("simple_v3")] * 2) as envs:
        ...     _ = envs.reset()
        ...     for _ in range(25):
        ...         _ = envs.step([{"agent_0": 0}] * 2)
        >>> envs.battles_game, envs.battles_won
        (array([1, 1], dtype=int32), array([1, 1], dtype=int32))
    """


class DummyVecEnv_Football(_Football, DummyVecMultiAgentEnv):
    """``DummyVecMultiAgentEnv`` with the counts of football's matches.

    Example:
        >>> from xuance_envs import MPE_Env, DummyVecEnv_Football
        >>> class Match(MPE_Env):
        ...     def get_env_info(self):
        ...         return {**super().get_env_info(), "num_adversaries": 5}
        ...     def step(self, actions):
        ...         *result, _ = super().step(actions)
        ...         return *result, {"score_reward": 1}
        >>> with DummyVecEnv_Football([lambda: Match("simple_v3")] * 2) as envs:
        ...     _ = envs.reset()
        ...     for _ in range(25):
        ...         _ = envs.step([{"agent_0": 0}] * 2)
        >>> envs.battles_game, envs.battles_won
        (array([1, 1], dtype=int32), array([1, 1], dtype=int32))
    """


class SubprocVecEnv_Football(_Football, SubprocVecMultiAgentEnv):
    """``SubprocVecMultiAgentEnv`` with the counts of football's matches.

    Example:
        >>> from xuance_envs import MPE_Env, SubprocVecEnv_Football
        >>> class Match(MPE_Env):
        ...     def get_env_info(self):
        ...         return {**super().get_env_info(), "num_adversaries": 5}
        ...     def step(self, actions):
        ...         *result, _ = super().step(actions)
        ...         return *result, {"score_reward": 1}
        >>> with SubprocVecEnv_Football([lambda: Match("simple_v3")] * 2) as envs:
        ...     _ = envs.reset()
        ...     for _ in range(25):
        ...         _ = envs.step([{"agent_0": 0}] * 2)
        >>> envs.battles_game, envs.battles_won
        (array([1, 1], dtype=int32), array([1, 1], dtype=int32))
    """
