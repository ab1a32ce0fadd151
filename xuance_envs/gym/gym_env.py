"""One environment in XuanCe's form: ``Gym_Env``, and ``MountainCar`` on top of it."""

from __future__ import annotations

import math
import operator
from collections import deque
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from xuance_envs.gym import legacy
from xuance_envs.gym.atari_env import Atari_Env
from xuance_envs.gym.lazy_frames import LazyFrames
from xuance_envs.gym.wrapper import EnvWrapper

__all__ = ["Atari_Env", "Gym_Env", "LazyFrames", "MountainCar"]

# The wrappers whose work `Gym_Env.step` can do. Not their subclasses, which may do more.
_REPLACEABLE = frozenset[Any]({TimeLimit, OrderEnforcing, PassiveEnvChecker})


class Gym_Env(EnvWrapper):
    """An environment by its id that is seeded once and counts each episode's steps and rewards.

    It is what the library's ``make`` returns, with two keys in every info dict: ``episode_step``,
    an int, and after a step ``episode_score``, a float, the sum of the episode's rewards so far.
    The dict that the environment returned is not written to.

    Args:
        env_id: As the library's ``make`` takes it: an id, ``"module:id"`` or a spec.
        seed: Seeds the action space at once, and the environment at the first :meth:`reset` unless
            that is given a seed of its own. Later resets continue the same random stream.
        render_mode: Passed to ``make`` unless it is None.
        library: ``"gymnasium"``, or ``"gym"`` for an environment registered with legacy gym 0.26.
        **kwargs: Passed to ``make``, which takes some and passes the rest to the environment.

    Attributes:
        max_episode_steps: Steps after which an episode is truncated, None where there is no limit.
        reward_range: Least and greatest reward, ``(-inf, inf)`` where nothing states it.

    Raises:
        ValueError: ``library`` is neither of the two.
        ImportError: ``library="gym"``, and gym cannot be imported.

    Examples:
        >>> env = Gym_Env("CartPole-v1", seed=1)
        >>> env.max_episode_steps
        500
        >>> observation, info = env.reset()
        >>> observation.shape, info
        ((4,), {'episode_step': 0})
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> info
        {'episode_step': 1, 'episode_score': 1.0}
        >>> env.close()
    """

    max_episode_steps: int | None
    reward_range: tuple[float, float]

    def __init__(
        self,
        env_id: str | EnvSpec,
        seed: int | None = None,
        render_mode: str | None = None,
        *,
        library: str = "gymnasium",
        **kwargs: Any,
    ) -> None:
        if library not in ("gymnasium", "gym"):
            raise ValueError(f"library must be 'gymnasium' or 'gym', got {library!r}")
        self._pending_seed = None if seed is None else operator.index(seed)
        if render_mode is not None:
            kwargs["render_mode"] = render_mode
        make = gymnasium.make if library == "gymnasium" else legacy.make
        super().__init__(make(env_id, **kwargs))

        if self._pending_seed is not None:
            self.action_space.seed(self._pending_seed)
        self.max_episode_steps = _step_limit(self.env)
        self.reward_range = _reward_range(self.env)
        self._episode_step = 0
        self._episode_score = 0.0

        # `step` does the work of some wrappers itself; see `_find_step_shortcut`.
        self._stepped_env: gymnasium.Env[Any, Any] = self.env
        self._time_limit: Any = None
        self._awaits_checks = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode.

        Args:
            seed: Starts the environment's random stream anew. None continues it, except that the
                first reset then uses the seed given at construction.
            options: Passed to the environment.

        Returns:
            The first observation, and the environment's info with ``episode_step`` 0.
        """
        if seed is None:
            seed = self._pending_seed
        observation, info = self.env.reset(seed=seed, options=options)
        self._pending_seed = None
        self._find_step_shortcut()
        self._episode_step = 0
        self._episode_score = 0.0
        info = info.copy()
        info["episode_step"] = 0
        return observation, info

    # Not by keyword alone, which CPython 3.11 calls more slowly.
    def step(
        self, action: Any = None, actions: Any = None
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one step.

        Args:
            action: In the form that ``action_space.sample()`` has.
            actions: The same, by the name that XuanCe has for it.

        Returns:
            Observation, reward, terminated, truncated, and the environment's info with
            ``episode_step`` and ``episode_score``.

        Raises:
            gymnasium.error.ResetNeeded: There has been no :meth:`reset` yet.
        """
        if action is None:
            action = actions
        observation, reward, terminated, truncated, info = self._stepped_env.step(action)

        time_limit = self._time_limit
        if time_limit is not None:  # whose own counter is counted on: see `_find_step_shortcut`
            time_limit._elapsed_steps = elapsed = time_limit._elapsed_steps + 1
            if elapsed >= time_limit._max_episode_steps:
                truncated = True
        elif self._awaits_checks:
            self._find_step_shortcut()

        self._episode_step = episode_step = self._episode_step + 1
        self._episode_score = episode_score = self._episode_score + float(reward)
        info = info.copy()
        info["episode_step"] = episode_step
        info["episode_score"] = episode_score
        return observation, reward, terminated, truncated, info

    def _find_step_shortcut(self) -> None:
        """Find the environment that `step` can call in place of the whole chain.

        Once reset, `OrderEnforcing` has nothing left to do, nor has `PassiveEnvChecker` once its
        checks are done; `TimeLimit` counts, which `step` does on the wrapper's own counter, so the
        chain can be stepped by hand at any time; neither the counter nor the limit has a public
        name. Calling the three would cost as much as all that `step` does itself.

        A chain that somebody rebuilds is followed from the next reset on.
        """
        self._stepped_env, self._time_limit, self._awaits_checks = self.env, None, False
        time_limit = None
        env: Any = self.env
        while (kind := type(env)) in _REPLACEABLE:
            # Not through `vars`, which on Python 3.11 would slow down every later use of `env`.
            if getattr(env.step, "__func__", None) is not kind.step:
                break
            if kind is TimeLimit:
                if time_limit is not None:
                    break
                time_limit = env
            elif kind is PassiveEnvChecker and not _has_checked_steps(env):
                self._awaits_checks = True
                return
            env = env.env
        self._stepped_env, self._time_limit = env, time_limit


def _step_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the least step limit that `env` or what it wraps states."""
    limits = []
    while True:
        limits.append(getattr(env, "max_episode_steps", None))
        if not isinstance(env, gymnasium.Wrapper):
            return min([limit for limit in limits if limit is not None], default=None)
        if isinstance(env, TimeLimit):
            # Its spec has it only if the environment's has; nothing else of it that is public has.
            limits.append(env._max_episode_steps)
        env = env.env


def _reward_range(env: gymnasium.Env[Any, Any]) -> tuple[float, float]:
    """Return the range of rewards that `env` states, else the widest there is."""
    stated: tuple[float, float] | None = None
    if env.has_wrapper_attr("reward_range"):
        stated = env.get_wrapper_attr("reward_range")
    return (-math.inf, math.inf) if stated is None else stated


def _has_checked_steps(checker: Any) -> bool:
    """Tell whether a `PassiveEnvChecker` will only pass steps on from now on."""
    # Gymnasium 1.4 added the second check, which the second step completes.
    return bool(checker.checked_step and getattr(checker, "checked_data_reuse", True))


class MountainCar(Gym_Env):
    """A ``Gym_Env`` whose observation is the last 4 observations, concatenated.

    Observations are :class:`~xuance_envs.gym.lazy_frames.LazyFrames`, for MountainCar of shape
    ``(8,)`` and dtype float32; after a reset all four are the first observation. The space repeats
    the environment's bounds 4 times.

    Args:
        env_id: An environment whose observation space is a `Box`.
        seed: As for :class:`Gym_Env`.
        render_mode: As for :class:`Gym_Env`.

    Raises:
        ValueError: The observation space is not a `Box`, or is one of scalars.

    Examples:
        >>> import numpy as np
        >>> env = MountainCar(seed=1)
        >>> observation, info = env.reset()
        >>> np.asarray(observation).shape, env.observation_space.shape
        ((8,), (8,))
        >>> env.close()
    """

    num_stack = 4

    def __init__(
        self,
        env_id: str | EnvSpec = "MountainCar-v0",
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(env_id, seed, render_mode)
        space = self.env.observation_space
        if not isinstance(space, Box) or not space.shape:
            raise ValueError(
                f"expected an environment whose observations are arrays (a Box), got {space}"
            )
        self.observation_space = Box(
            np.concatenate([space.low] * self.num_stack, axis=-1),
            np.concatenate([space.high] * self.num_stack, axis=-1),
            dtype=space.dtype.type,
        )
        self._frame_dtype = space.dtype
        self.frames: deque[Any] = deque(maxlen=self.num_stack)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        """Start a new episode; see :meth:`Gym_Env.reset`."""
        observation, info = super().reset(seed=seed, options=options)
        self.frames.extend([self._frame(observation)] * self.num_stack)
        return LazyFrames(self.frames), info

    def step(
        self, action: Any = None, actions: Any = None
    ) -> tuple[LazyFrames, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one step; see :meth:`Gym_Env.step`."""
        observation, reward, terminated, truncated, info = super().step(action, actions)
        self.frames.append(self._frame(observation))
        return LazyFrames(self.frames), reward, terminated, truncated, info

    def _frame(self, observation: Any) -> Any:
        # A copy: the environment may write its next observation into the same array.
        return np.array(observation, dtype=self._frame_dtype)
