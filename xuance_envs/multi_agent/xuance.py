"""XuanCe's classes for vectorized multi-agent environments, which return lists of dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import numpy as np

from xuance_envs._override import Unpack
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.multi_agent.step import MultiAgentStart
from xuance_envs.multi_agent.team import Groups
from xuance_envs.multi_agent.xuance_vec_env import XuanCeVecMultiAgentEnv
from xuance_envs.vector_envs.options import (
    AutoBool,
    DummyOptions,
    InSeries,
    StartMethod,
    SubprocOptions,
)
from xuance_envs.vector_envs.signatures import with_options

__all__ = [
    "DummyVecEnv_Football",
    "DummyVecEnv_StarCraft2",
    "DummyVecMultiAgentEnv",
    "SubprocVecEnv_Football",
    "SubprocVecEnv_StarCraft2",
    "SubprocVecMultiAgentEnv",
    "XuanCeVecMultiAgentEnv",
]


class TeamOptions(TypedDict, total=False):
    groups: Groups | None
    state: AutoBool
    action_masks: AutoBool


class DummyMultiAgentOptions(DummyOptions, TeamOptions, total=False):
    """Options of XuanCe's multi-agent vec envs in the main process."""


class SubprocMultiAgentOptions(SubprocOptions, TeamOptions, total=False):
    """Options of XuanCe's multi-agent vec envs in worker processes."""


@with_options(DummyMultiAgentOptions, MultiAgentVecEnv)
class DummyVecMultiAgentEnv(XuanCeVecMultiAgentEnv):
    """XuanCe's vectorized multi-agent environment that runs in this process.

    Args:
        env_fns: callables that create one environment each.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        record_failures: as for :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv`.
        **options: arguments for
            :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv`.

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
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        **options: Unpack[DummyMultiAgentOptions],
    ) -> None:
        super().__init__(MultiAgentVecEnv(env_fns, env_seed, backend="dummy", **options))

    @property
    def envs(self) -> list[Any]:
        """The environments, in a new list; empty once closed."""
        return self.envs_of_agents.environments


@with_options(SubprocMultiAgentOptions, MultiAgentVecEnv)
class SubprocVecMultiAgentEnv(XuanCeVecMultiAgentEnv):
    """XuanCe's vectorized multi-agent environment that runs in worker processes.

    Args:
        env_fns: callables that create one environment each, in its worker.
        env_seed: if given, callable i is called with ``env_seed=env_seed + i``.
        context: start method of the workers: ``"spawn"``, ``"forkserver"`` or ``"fork"``.
        in_series: environments per worker; ``"auto"`` starts one worker per CPU, at most
            one per environment.
        **options: arguments for
            :class:`~xuance_envs.multi_agent.multi_agent_vec_env.MultiAgentVecEnv` and
            :class:`~xuance_envs.vector_envs.subproc_vec_env.SubprocVecEnv`.

    Example:
        >>> from xuance_envs import MPE_Env, SubprocVecMultiAgentEnv
        >>> with SubprocVecMultiAgentEnv([lambda: MPE_Env("simple_tag_v3")] * 2) as envs:
        ...     obs, infos = envs.reset()
        >>> [agent_obs.shape for agent_obs in obs[1].values()], infos[1]["state"].shape
        ([(16,), (16,), (16,), (14,)], (62,))
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[..., Any]],
        env_seed: int | None = None,
        context: StartMethod = "spawn",
        in_series: InSeries = "auto",
        **options: Unpack[SubprocMultiAgentOptions],
    ) -> None:
        envs = MultiAgentVecEnv(
            env_fns, env_seed, backend="subproc", context=context, in_series=in_series, **options
        )
        super().__init__(envs)


class _Battles(XuanCeVecMultiAgentEnv):
    """Battle counters for environments in which teams fight."""

    def __init__(self, envs: MultiAgentVecEnv) -> None:
        super().__init__(envs)
        self.battles_game = np.zeros(self.num_envs, np.int32)
        self.battles_won = np.zeros(self.num_envs, np.int32)

    def _add_reset_infos(self, first: MultiAgentStart) -> None:
        super()._add_reset_infos(first)
        for env in first.env_ids.tolist():
            self.battles_game[env] += 1
            self._count(env, self.buf_info[env])

    def _count(self, env: int, info: Mapping[str, Any]) -> None:
        """Update the counters after a battle; keys may be missing if the worker failed."""
        raise NotImplementedError


class _StarCraft2(_Battles):
    """Battle statistics of StarCraft II environments.

    Attributes:
        num_enemies (int): number of enemies, from the environment's ``get_env_info()``, which must
            have this key.
        battles_game (numpy.ndarray): finished episodes, ``(num_envs,)`` int32.
        battles_won (numpy.ndarray): episodes whose last info had a true ``battle_won``,
            ``(num_envs,)`` int32.
        dead_allies_count (numpy.ndarray): sums of ``dead_allies`` in the episodes' last infos,
            ``(num_envs,)`` int32.
        dead_enemies_count (numpy.ndarray): sums of ``dead_enemies`` in the episodes' last infos,
            ``(num_envs,)`` int32.

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

    def __init__(self, envs: MultiAgentVecEnv) -> None:
        super().__init__(envs)
        self.num_enemies = self.env_info["num_enemies"]
        self.dead_allies_count = np.zeros(self.num_envs, np.int32)
        self.dead_enemies_count = np.zeros(self.num_envs, np.int32)

    def _count(self, env: int, info: Mapping[str, Any]) -> None:
        self.battles_won[env] += bool(info.get("battle_won"))
        self.dead_allies_count[env] += info.get("dead_allies", 0)
        self.dead_enemies_count[env] += info.get("dead_enemies", 0)


class _Football(_Battles):
    """Match statistics of football environments.

    Attributes:
        num_adversaries (int): number of adversaries, from the environment's ``get_env_info()``,
            which must have this key.
        battles_game (numpy.ndarray): finished episodes, ``(num_envs,)`` int32.
        battles_won (numpy.ndarray): episodes whose last info had a positive ``score_reward``,
            ``(num_envs,)`` int32.
    """

    def __init__(self, envs: MultiAgentVecEnv) -> None:
        super().__init__(envs)
        self.num_adversaries = self.env_info["num_adversaries"]

    def _count(self, env: int, info: Mapping[str, Any]) -> None:
        self.battles_won[env] += info.get("score_reward", 0) > 0


@with_options(None, _StarCraft2, DummyVecMultiAgentEnv)
class DummyVecEnv_StarCraft2(DummyVecMultiAgentEnv, _StarCraft2):
    """``DummyVecMultiAgentEnv`` with battle statistics of StarCraft II."""


@with_options(None, _StarCraft2, SubprocVecMultiAgentEnv)
class SubprocVecEnv_StarCraft2(SubprocVecMultiAgentEnv, _StarCraft2):
    """``SubprocVecMultiAgentEnv`` with battle statistics of StarCraft II."""


@with_options(None, _Football, DummyVecMultiAgentEnv)
class DummyVecEnv_Football(DummyVecMultiAgentEnv, _Football):
    """``DummyVecMultiAgentEnv`` with match statistics of football."""


@with_options(None, _Football, SubprocVecMultiAgentEnv)
class SubprocVecEnv_Football(SubprocVecMultiAgentEnv, _Football):
    """``SubprocVecMultiAgentEnv`` with match statistics of football."""
