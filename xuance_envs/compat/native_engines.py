"""Environments that are vectorized already, each behind the same few calls.

An engine steps all of its environments in one call, in NumPy or C++. What differs is how an
environment whose episode ended is given its next one within the step, and how environments are
reset and seeded; each class here knows one way of doing so.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from xuance_envs._override import override
from xuance_envs.compat.native_batches import (
    Envs,
    Infos,
    array_rows_of,
    rows_of,
    with_final_infos,
    with_last,
)
from xuance_envs.engine.group.single_env import EnvDescription

__all__ = ["EngineStep", "NativeEngine", "make_engine"]

_CARTPOLE = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
_ATARI = "ale_py.vector_env.AtariVectorEnv"


class EngineStep:
    """What came of one step of an engine."""

    __slots__ = (
        "ended",
        "infos",
        "observations",
        "reset_infos",
        "reset_observations",
        "rewards",
        "terminated",
        "truncated",
    )

    def __init__(self, result: tuple[Any, ...]) -> None:
        self.observations, self.rewards, self.terminated, self.truncated, self.infos = result
        (self.ended,) = (self.terminated | self.truncated).nonzero()
        self.reset_observations: Any = None
        self.reset_infos: Infos = {}


class NativeEngine(ABC):
    """A vectorized environment as an engine."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.name = type(env).__name__
        self.num_envs: int = env.num_envs

    def describe(self) -> EnvDescription:
        """Describes one of its environments."""
        limit = getattr(self.env, "max_episode_steps", None)
        if limit is None:
            limit = getattr(getattr(self.env, "spec", None), "max_episode_steps", None)
        return EnvDescription(
            self.single_space("observation_space"),
            self.single_space("action_space"),
            dict(getattr(self.env, "metadata", None) or {}),
            getattr(self.env, "render_mode", None),
            limit,
        )

    def single_space(self, name: str) -> Space[Any]:
        """The space of one environment."""
        space: Space[Any] = getattr(self.env, f"single_{name}")
        return space

    @abstractmethod
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        """Raises a NotImplementedError if it cannot reset like this, and says why."""

    @abstractmethod
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        """Resets all environments."""

    @abstractmethod
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        """Resets some environments; returns their observations and infos."""

    def step(self, actions: Any) -> EngineStep:
        """Steps all environments, and begins the next episode where one ended."""
        step = EngineStep(self.env.step(actions))
        if len(step.ended):
            self.start_next_episodes(step)
        return step

    def start_next_episodes(self, step: EngineStep) -> None:
        """Begins the next episodes, if the step has not."""
        step.reset_observations, step.reset_infos = self.reset_some(step.ended, _UNSEEDED)

    def render(self, places: Sequence[int]) -> list[Any]:
        """Frames of some environments."""
        frames = self.env.render()
        if frames is None:
            raise NotImplementedError(f"{self.name} was made without a render_mode")
        return [frames[place] for place in places]

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


_UNSEEDED: Sequence[int | None] = ()


class CartPoleEngine(NativeEngine):
    """Gymnasium's ``CartPoleVectorEnv``: one array of states, one generator for all.

    It resets what ended in the next step, and has no way of being asked to earlier; but its state
    is public, so the next episodes can be begun in its own way within the step.
    """

    @override
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        seeded = any([seed is not None for seed in seeds])
        if part and (seeded or options):
            raise NotImplementedError(
                "CartPoleVectorEnv has one generator and one set of bounds for all environments: "
                "some of them can only be reset without seed and options"
            )
        if seeded and not _is_range(seeds):
            raise NotImplementedError(
                "CartPoleVectorEnv has one generator for all environments: give it an int seed, "
                "not one for each"
            )

    @override
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        result: tuple[Any, Infos] = self.env.reset(seed=seeds[0], options=options)
        return result

    @override
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        env = self.env
        state = env.np_random.uniform(env.low, env.high, (4, len(envs)))
        env.state[:, envs] = state
        env.steps[envs] = 0
        env.prev_done[envs] = False
        return state.T.astype(np.float32), {}


class MaskEngine(NativeEngine):
    """An environment that takes ``options["reset_mask"]``, such as ale-py's ``AtariVectorEnv``."""

    def __init__(self, env: Any, takes_mask: bool = True) -> None:
        super().__init__(env)
        self._takes_mask = takes_mask
        self._is_atari = _ATARI in _class_names(env)

    @override
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        if part and not self._takes_mask:
            raise NotImplementedError(f"{self.name} has no way of resetting some environments")
        if part and options:
            raise NotImplementedError(
                f"{self.name} takes options for all environments only: reset all, or give none"
            )
        if self._is_atari and len({seed is None for seed in seeds}) > 1:
            raise NotImplementedError("AtariVectorEnv takes a seed for each environment, or none")

    @override
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        every = np.arange(self.num_envs)
        result: tuple[Any, Infos] = self.env.reset(seed=self._seeds(every, seeds), options=options)
        return result

    @override
    def reset_some(self, envs: Envs, seeds: Sequence[int | None]) -> tuple[Any, Infos]:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[envs] = True
        observations, infos = self.env.reset(
            seed=self._seeds(envs, seeds), options={"reset_mask": mask}
        )
        # ale-py's releases differ in whether they give all observations, or those that are new.
        given = np.asarray(infos["env_id"]) if "env_id" in infos else np.arange(self.num_envs)
        rows = np.searchsorted(given, envs)
        return rows_of(observations, rows), {
            key: rows_of(part, rows) for key, part in infos.items()
        }

    def _seeds(self, envs: Envs, seeds: Sequence[int | None]) -> Any:
        """The seeds in the form it takes them."""
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
    """An environment that resets within the step, and gives last observations in its info."""

    @override
    def start_next_episodes(self, step: EngineStep) -> None:
        infos = dict(step.infos)
        try:
            last = infos.pop("final_obs")
        except KeyError:
            raise NotImplementedError(
                f"{self.name} says that it resets within the step, but gives no 'final_obs'"
            ) from None
        final_info = infos.pop("final_info", {})
        for key in ("_final_obs", "_final_info"):
            infos.pop(key, None)
        ended = step.ended
        step.reset_observations = rows_of(step.observations, ended)
        step.reset_infos = array_rows_of(infos, ended)
        step.observations = with_last(step.observations, ended, last)
        step.infos = with_final_infos(infos, final_info, ended)


class EnvPoolEngine(NativeEngine):
    """An EnvPool in its Gymnasium form, which takes ``reset(ids)``."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.name = type(env).__name__
        self.num_envs = int(env.config["num_envs"])

    @override
    def describe(self) -> EnvDescription:
        limit = self.env.config.get("max_episode_steps")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds in float64, of which nobody can make others
            spaces = self.env.observation_space, self.env.action_space
        return EnvDescription(
            *spaces,
            dict(getattr(self.env, "metadata", None) or {}),
            getattr(self.env, "render_mode", None),
            limit,
        )

    @override
    def check_reset(self, seeds: Sequence[int | None], options: Any, part: bool) -> None:
        if any([seed is not None for seed in seeds]):
            raise NotImplementedError(
                "EnvPool takes its seed when it is made, envpool.make(..., seed=...), and none "
                "in reset"
            )
        if options:
            raise NotImplementedError("EnvPool takes no options in reset")

    @override
    def reset(self, seeds: Sequence[int | None], options: Any) -> tuple[Any, Infos]:
        observations, infos = self.env.reset()
        return observations, _drop_player_axis(infos)

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
    """The engine for an environment."""
    kinds = _class_names(env)
    if any([kind.startswith("envpool.") for kind in kinds]):
        return _envpool(env)
    if not isinstance(env, VectorEnv):
        raise TypeError(f"expected a gymnasium.vector.VectorEnv or an EnvPool, got {env!r}")
    if env.unwrapped is not env:
        raise TypeError(
            f"expected a bare vector environment, got the wrapper {env}: steps have to be taken "
            "from the environment itself; wrap what from_gymnasium returns, with to_gymnasium"
        )
    if _CARTPOLE in kinds:
        return CartPoleEngine(env)
    if getattr(env, "batch_size", env.num_envs) != env.num_envs:
        raise ValueError(f"{env} steps only some environments at a time: give it no batch_size")
    # ale-py writes its mode into metadata that all classes share: its own attribute is right.
    mode = getattr(env, "autoreset_mode", env.metadata.get("autoreset_mode"))
    mode = AutoresetMode(mode) if mode is not None else None
    if mode is AutoresetMode.SAME_STEP:
        known = _ATARI in kinds or isinstance(env, SyncVectorEnv | AsyncVectorEnv)
        return SameStepEngine(env, takes_mask=known)
    if _ATARI in kinds:
        return MaskEngine(env)
    if mode is AutoresetMode.DISABLED:
        return MaskEngine(env)
    raise ValueError(
        f"{env} resets an environment in the step after the one that ended its episode, so it "
        "cannot give reset_obs: make it with autoreset_mode=AutoresetMode.SAME_STEP or DISABLED, "
        "if it has that"
    )


def _envpool(env: Any) -> NativeEngine:
    config = getattr(env, "config", None)
    if config is None or not hasattr(type(env), "step") or "Gymnasium" not in type(env).__name__:
        raise TypeError(
            f"expected an EnvPool in its Gymnasium form, envpool.make(..., env_type='gymnasium'), "
            f"got {env!r}"
        )
    if config["batch_size"] not in (0, config["num_envs"]):
        raise ValueError(
            "EnvPool steps only some environments at a time: make it without batch_size"
        )
    if config.get("max_num_players", 1) != 1:
        raise ValueError("environments for several players are not supported")
    return EnvPoolEngine(env)


def _class_names(env: Any) -> list[str]:
    """The names of its classes; to look at them so imports nothing."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(env).__mro__]


def _drop_player_axis(infos: Infos) -> Infos:
    return {key: part for key, part in infos.items() if key != "players"}


def _is_range(seeds: Sequence[int | None]) -> bool:
    first = seeds[0]
    return first is not None and list(seeds) == list(range(first, first + len(seeds)))
