"""Engines: environments that are already vectorized, behind a common interface.

Each class implements resets, seeding, and the start of the next episode within the step that
ends an episode.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.info_writer import rows_of_infos, with_final_infos
from xuance_envs.engine.data.space_layout import StepSpaces, map_batch
from xuance_envs.engine.group.single_env import EnvDescription
from xuance_envs.engine.serialization import copy_of
from xuance_envs.env_layers import reward_space_of

Infos = Mapping[str, Any]
Envs = NDArray[np.intp]  # ascending indices

_CARTPOLE = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
_ATARI = "ale_py.vector_env.AtariVectorEnv"


@dataclass(slots=True, eq=False)
class EngineStep:
    observations: Any
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Infos
    ended: Envs
    reset_observations: Any = None
    reset_infos: Infos = field(default_factory=dict)


class NativeEngine(ABC):
    """Interface of an already vectorized environment."""

    def __init__(self, env: Any, num_envs: int | None = None) -> None:
        self.env = env
        self.name = type(env).__name__
        self.num_envs: int = env.num_envs if num_envs is None else num_envs

    def describe(self) -> EnvDescription:
        env = self.env
        metadata, render_mode = getattr(env, "metadata", None), getattr(env, "render_mode", None)
        limit = getattr(env, "max_episode_steps", None)
        if limit is None:
            limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        return EnvDescription(self.spaces(), dict(metadata or {}), render_mode, limit)

    def spaces(self) -> StepSpaces:
        observations, actions = self.env.single_observation_space, self.env.single_action_space
        return StepSpaces(observations, actions, reward_space_of(self.env))

    @abstractmethod
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        """Raise a NotImplementedError if the engine does not support these arguments."""

    @abstractmethod
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        """Reset all environments; return their observations and infos."""

    @abstractmethod
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        """Reset some environments; return their observations and infos."""

    def step(self, actions: Any) -> EngineStep:
        """Step all environments; where an episode ended, start the next one."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        (ended,) = (terminated | truncated).nonzero()
        step = EngineStep(observations, rewards, terminated, truncated, infos, ended)
        if len(ended):
            self.start_next_episodes(step)
        return step

    def start_next_episodes(self, step: EngineStep) -> None:
        """Start the next episodes, unless the environment has done so in the step."""
        step.reset_observations, step.reset_infos = self.reset_some(step.ended, seeds=())


class CartPoleEngine(NativeEngine):
    """Gymnasium's ``CartPoleVectorEnv``, with one generator for all copies."""

    @override
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        seeded = any([seed is not None for seed in seeds])
        if part and (seeded or options):
            raise NotImplementedError(
                "CartPoleVectorEnv has one generator and one pair of reset bounds (options 'low' "
                "and 'high') for all environments: reset all of them, or pass neither seed nor "
                "options"
            )
        if seeded and not _is_range(seeds):
            raise NotImplementedError(
                "CartPoleVectorEnv has one generator for all environments: use an int seed instead "
                f"of one seed per environment, got {list(seeds)}"
            )

    @override
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        result: tuple[Any, Infos] = self.env.reset(seed=seeds[0], options=options)
        return result

    @override
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        env = self.env  # same reset as in CartPoleVectorEnv.step
        state = env.np_random.uniform(env.low, env.high, (4, len(envs)))
        env.state[:, envs] = state
        env.steps[envs] = 0
        env.prev_done[envs] = False
        return state.T.astype(np.float32), {}


class MaskEngine(NativeEngine):
    """Engine that resets some environments by ``options["reset_mask"]``, if supported."""

    def __init__(self, env: Any, takes_mask: bool = True) -> None:
        super().__init__(env)
        self._takes_mask = takes_mask
        self._is_atari = _ATARI in _class_names(env)

    @override
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        if part and not self._takes_mask:
            raise NotImplementedError(
                f"{self.name} cannot reset only some of its environments; reset all of them"
            )
        if part and options:
            raise NotImplementedError(
                f"{self.name} accepts options only for a reset of all environments"
            )
        if self._is_atari and len({seed is None for seed in seeds}) > 1:
            raise NotImplementedError(
                f"AtariVectorEnv needs a seed for each environment, or no seeds; got {list(seeds)}"
            )

    @override
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        every = np.arange(self.num_envs)
        result: tuple[Any, Infos] = self.env.reset(seed=self._seeds(every, seeds), options=options)
        return result

    @override
    def start_next_episodes(self, step: EngineStep) -> None:
        # The reset may overwrite arrays that the step returned, unless the engine copies them.
        if not getattr(self.env, "copy", self._is_atari):
            for name in ("observations", "rewards", "terminated", "truncated", "infos"):
                setattr(step, name, copy_of(getattr(step, name)))
        super().start_next_episodes(step)

    @override
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[envs] = True
        observations, infos = self.env.reset(
            seed=self._seeds(envs, seeds), options={"reset_mask": mask}
        )
        # Some ale-py releases return all observations, others only those of the reset environments.
        by_id = self._is_atari and "env_id" in infos
        rows = np.searchsorted(infos["env_id"], envs) if by_id else envs
        return rows_of(observations, rows), rows_of_infos(infos, rows)

    def _seeds(self, envs: Envs, seeds: Sequence[int | None]) -> Any:
        """Return the seeds in the form that the environment expects."""
        if all([seed is None for seed in seeds]):
            return None
        if self._is_atari:
            return np.array(seeds)
        if len(envs) == self.num_envs and _is_range(seeds):
            return seeds[0]
        every: list[int | None] = [None] * self.num_envs
        for env, seed in zip(envs.tolist(), seeds, strict=True):
            every[env] = seed
        return every


class SameStepEngine(MaskEngine):
    """Engine for environments that reset within the step and return final observations in infos."""

    @override
    def start_next_episodes(self, step: EngineStep) -> None:
        infos = dict(step.infos)
        if "final_obs" not in infos:
            raise NotImplementedError(
                f"{self.name} has autoreset_mode SAME_STEP, but its infos have no 'final_obs'"
            )
        last, final_info = infos.pop("final_obs"), infos.pop("final_info", {})
        for key in ("_final_obs", "_final_info"):
            infos.pop(key, None)
        ended = step.ended
        step.reset_observations = rows_of(step.observations, ended)
        step.reset_infos = rows_of_infos(infos, ended)
        step.observations = with_last(step.observations, ended, last)
        step.infos = with_final_infos(infos, final_info, ended, self.num_envs)


class EnvPoolEngine(NativeEngine):
    """An EnvPool in its Gymnasium form, whose ``reset`` accepts environment ids."""

    @override
    def describe(self) -> EnvDescription:
        limit = self.env.config.get("max_episode_steps")
        return replace(super().describe(), max_episode_steps=limit)

    @override
    def spaces(self) -> StepSpaces:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # float64 bounds, which users cannot change
            return StepSpaces(self.env.observation_space, self.env.action_space)

    @override
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        if any([seed is not None for seed in seeds]):
            raise NotImplementedError(
                "EnvPool does not accept a seed in reset; pass it to the constructor: "
                "envpool.make(..., seed=...)"
            )
        if options:
            raise NotImplementedError(f"EnvPool does not accept options in reset, got {options!r}")

    @override
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        return self.reset_some(np.arange(self.num_envs), seeds)

    @override
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        observations, infos = self.env.reset(envs.astype(np.int32))
        return observations, _drop_player_axis(infos)

    @override
    def step(self, actions: Any) -> EngineStep:
        step = super().step(actions)
        step.infos = _drop_player_axis(step.infos)
        return step


def make_engine(env: Any) -> NativeEngine:
    kinds = _class_names(env)
    if any([kind.startswith("envpool.") for kind in kinds]):
        return _envpool(env)
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"vector_env: expected a gymnasium.vector.VectorEnv or an EnvPool, got {env!r}"
        )
    if env.unwrapped is not env:
        raise TypeError(
            f"vector_env: expected an unwrapped vector environment, got the wrapper {env}: pass "
            "env.unwrapped, and apply wrappers to to_gymnasium(from_gymnasium(env.unwrapped))"
        )
    if _CARTPOLE in kinds:
        kind: Any = type(env)
        original = kind.__mro__[kinds.index(_CARTPOLE)]
        if (kind.reset, kind.step) == (original.reset, original.step):
            return CartPoleEngine(env)
    if (batch_size := getattr(env, "batch_size", env.num_envs)) != env.num_envs:
        raise ValueError(
            f"vector_env: expected an environment that steps all {env.num_envs} copies together, "
            f"got {env} with batch_size={batch_size}: make it without batch_size"
        )
    # ale-py writes its mode into metadata shared by all instances; the attribute is correct.
    mode = getattr(env, "autoreset_mode", env.metadata.get("autoreset_mode"))
    mode = AutoresetMode(mode) if mode is not None else None
    if mode is AutoresetMode.SAME_STEP:
        known = _ATARI in kinds or isinstance(env, SyncVectorEnv | AsyncVectorEnv)
        return SameStepEngine(env, takes_mask=known)
    if mode is AutoresetMode.DISABLED or _ATARI in kinds or isinstance(env, SyncVectorEnv):
        return MaskEngine(env)
    raise ValueError(
        "vector_env: expected autoreset_mode SAME_STEP or DISABLED, so that infos have reset_obs, "
        f"got {getattr(mode, 'name', mode)} of {env}: create the environment with "
        "autoreset_mode=AutoresetMode.SAME_STEP or DISABLED, if possible"
    )


def _envpool(env: Any) -> NativeEngine:
    config = getattr(env, "config", None)
    if config is None or not hasattr(type(env), "step") or "Gymnasium" not in type(env).__name__:
        raise TypeError(
            "vector_env: expected an EnvPool in its Gymnasium form, "
            f"envpool.make(..., env_type='gymnasium'), got {env!r}"
        )
    if config["batch_size"] not in (0, config["num_envs"]):
        raise ValueError(
            f"vector_env: expected an EnvPool that steps all {config['num_envs']} environments "
            f"together, got batch_size={config['batch_size']}: make the EnvPool without batch_size"
        )
    if config.get("max_num_players", 1) != 1:
        raise ValueError(
            "vector_env: expected an EnvPool with one player, got max_num_players="
            f"{config['max_num_players']}"
        )
    return EnvPoolEngine(env, int(config["num_envs"]))


def _class_names(env: Any) -> list[str]:
    """Return the names of the class and its bases, because comparing names needs no imports."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(env).__mro__]


def _drop_player_axis(infos: Infos) -> Infos:
    return {key: part for key, part in infos.items() if key != "players"}


def _is_range(seeds: Sequence[int | None]) -> bool:
    first = seeds[0]
    return first is not None and list(seeds) == list(range(first, first + len(seeds)))


def rows_of(batch: Any, rows: Any) -> Any:
    """Return some rows of an array, or of each array in dicts and tuples."""
    return map_batch(lambda array: array[rows], batch)


def with_last(batch: Any, envs: Envs, last: Any) -> Any:
    """Return a copy of the batch in which the rows of ``envs`` are taken from ``last``."""
    replaced = map_batch(np.array, batch)
    if isinstance(last, np.ndarray) and last.dtype != object:
        replaced[envs] = last[envs]
        return replaced
    for env in envs.tolist():  # ``last`` is a batch, or an array of single observations
        one = rows_of(last, env) if isinstance(last, dict | tuple) else last[env]
        map_batch(partial(_set_row, env), replaced, one)
    return replaced


def _set_row(row: int, array: NDArray[Any], value: Any) -> None:
    array[row] = value
