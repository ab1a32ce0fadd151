"""Single environments in XuanCe's form: ``Gym_Env`` and ``MountainCar``."""

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

from xuance_envs.engine.data.reward_rows import fit_reward
from xuance_envs.engine.data.space_layout import fit
from xuance_envs.env_layers import reward_space_of
from xuance_envs.extras import naming_extra
from xuance_envs.gym import legacy
from xuance_envs.gym.atari_env import Atari_Env
from xuance_envs.gym.lazy_frames import LazyFrames
from xuance_envs.gym.wrapper import EnvWrapper

__all__ = ["Atari_Env", "Gym_Env", "LazyFrames", "MountainCar"]

# Wrappers that `Gym_Env.step` can replace. Subclasses are excluded, as they may do more.
_REPLACEABLE = frozenset[Any]({TimeLimit, OrderEnforcing, PassiveEnvChecker})


class Gym_Env(EnvWrapper):
    """A registered environment that is seeded once and counts steps and rewards per episode.

    Every info dict gets ``episode_step`` (int). After a step, it also gets ``episode_score``
    (float), the sum of the episode's rewards so far. The environment's own dict is copied, not
    modified.

    Args:
        env_id: an id, ``"module:id"`` or a spec, as accepted by the library's ``make``.
        seed: seed of the action space, and of the first :meth:`reset` unless that call has its own
            seed. Later resets continue the random stream.
        render_mode: passed to ``make`` unless None.
        library: ``"gymnasium"``, or ``"gym"`` for an environment of legacy gym 0.26.
        **kwargs: passed to ``make``.

    Attributes:
        max_episode_steps: steps after which an episode is truncated; None for no limit.
        reward_space (gymnasium.spaces.Box | None): space ``(k,)`` of vector rewards, from the
            environment's ``reward_space``; None if rewards are numbers. With vector rewards,
            ``episode_score`` is an array ``(k,)``.
        reward_range: minimum and maximum reward; ``(-inf, inf)`` if the environment has none.

    Raises:
        ValueError: ``library`` is invalid.
        ImportError: a library that the environment requires is missing. The message names the
            extra to install.

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

    reward_space: Box | None = None
    _initial_score: Any = 0.0

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
            raise ValueError(f"library: expected 'gymnasium' or 'gym', got {library!r}")
        self._pending_seed = None if seed is None else operator.index(seed)
        if render_mode is not None:
            kwargs["render_mode"] = render_mode
        make = gymnasium.make if library == "gymnasium" else legacy.make
        with naming_extra(env_id):
            super().__init__(make(env_id, **kwargs))

        if self._pending_seed is not None:
            self.action_space.seed(self._pending_seed)
        self.max_episode_steps = _step_limit(self.env)
        has_range = self.env.has_wrapper_attr("reward_range")
        stated = self.env.get_wrapper_attr("reward_range") if has_range else None
        self.reward_range = (-math.inf, math.inf) if stated is None else stated
        # Set only for vectors, so that states of other environments stay compatible.
        if (space := reward_space_of(self.env)) is not None:
            self.reward_space, self._initial_score = space, np.zeros(space.shape)
        self._episode_step = 0
        self._episode_score = self._initial_score

        # `step` replaces some wrappers; see `_find_step_shortcut`.
        self._stepped_env: gymnasium.Env[Any, Any] = self.env
        self._time_limit: Any = None
        self._awaits_checks = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode.

        Args:
            seed: new seed of the environment's random stream. None continues the stream; in the
                first reset, None uses the seed given at construction.
            options: passed to the environment.

        Returns:
            The first observation, and the environment's info with ``episode_step`` 0.
        """
        if seed is None:
            seed = self._pending_seed
        observation, info = self.env.reset(seed=seed, options=options)
        self._pending_seed = None
        self._find_step_shortcut()
        self._episode_step = 0
        self._episode_score = self._initial_score
        info = info.copy()
        info["episode_step"] = 0
        return observation, info

    # `actions` is not keyword-only: CPython 3.11 calls such functions more slowly.
    def step(
        self, action: Any = None, actions: Any = None
    ) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment once.

        Args:
            action: an action, in the form of ``action_space.sample()``.
            actions: XuanCe's name for ``action``.

        Returns:
            Observation, reward, terminated, truncated, and the environment's info with
            ``episode_step`` and ``episode_score``.

        Raises:
            gymnasium.error.ResetNeeded: :meth:`reset` has not been called.
        """
        if action is None:
            action = actions
        observation, reward, terminated, truncated, info = self._stepped_env.step(action)

        time_limit = self._time_limit
        if time_limit is not None:  # advance the skipped wrapper's own counter
            time_limit._elapsed_steps = elapsed = time_limit._elapsed_steps + 1
            if elapsed >= time_limit._max_episode_steps:
                truncated = True
        elif self._awaits_checks:
            self._find_step_shortcut()

        self._episode_step = episode_step = self._episode_step + 1
        try:
            self._episode_score = episode_score = self._episode_score + float(reward)
        except (TypeError, DeprecationWarning):  # NumPy before 2.4 warns about one component
            score = self._episode_score + fit_reward(reward, np.shape(self._initial_score))
            self._episode_score = episode_score = score if score.ndim else float(score)
        info = info.copy()
        info["episode_step"] = episode_step
        info["episode_score"] = episode_score
        return observation, reward, terminated, truncated, info

    def _find_step_shortcut(self) -> None:
        """Find the inner environment that `step` can call directly."""
        # Calling three wrappers would double the cost of `step`. `OrderEnforcing` has no effect
        # after a reset, and `PassiveEnvChecker` has none after its checks. `step` advances
        # `TimeLimit`'s own counter, so that users can still step the full chain.
        self._stepped_env, self._time_limit, self._awaits_checks = self.env, None, False
        time_limit = None
        env: Any = self.env
        while (kind := type(env)) in _REPLACEABLE:
            # `vars` would slow down every later access to `env` on Python 3.11.
            if getattr(env.step, "__func__", None) is not kind.step:
                break
            if kind is TimeLimit:
                if time_limit is not None:
                    break
                time_limit = env
            # Gymnasium 1.4 added a second check, which the second step completes.
            elif kind is PassiveEnvChecker and not (
                env.checked_step and getattr(env, "checked_data_reuse", True)
            ):
                self._awaits_checks = True
                return
            env = env.env
        self._stepped_env, self._time_limit = env, time_limit


def _step_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the smallest step limit in the wrapper chain."""
    limits = [getattr(env, "max_episode_steps", None)]
    if isinstance(env, TimeLimit):
        # The limit has no public name. The spec contains only registered limits.
        limits.append(env._max_episode_steps)
    if isinstance(env, gymnasium.Wrapper):
        limits.append(_step_limit(env.env))
    return min([limit for limit in limits if limit is not None], default=None)


class MountainCar(Gym_Env):
    """A ``Gym_Env`` that concatenates the last 4 observations.

    Observations are :class:`~xuance_envs.gym.lazy_frames.LazyFrames`. With the default environment,
    MountainCar-v0, their shape is ``(8,)`` and their dtype float32. After a reset, the first
    observation is repeated 4 times. The observation space repeats the environment's bounds 4 times.

    Args:
        env_id: as for :class:`Gym_Env`; the environment's observation space must be a Box.
        seed: as for :class:`Gym_Env`.
        render_mode: as for :class:`Gym_Env`.

    Raises:
        ValueError: the observation space is not a Box with at least one axis; or, in :meth:`reset`
            or :meth:`step`, an observation does not fit its shape or dtype.

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
                "env_id: expected an environment whose observations are arrays (a Box with at "
                f"least one axis), got {space}"
            )
        self.observation_space = Box(
            np.concatenate([space.low] * self.num_stack, axis=-1),
            np.concatenate([space.high] * self.num_stack, axis=-1),
            dtype=space.dtype.type,
        )
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
        """Step the environment once; see :meth:`Gym_Env.step`."""
        observation, reward, terminated, truncated, info = super().step(action, actions)
        self.frames.append(self._frame(observation))
        return LazyFrames(self.frames), reward, terminated, truncated, info

    def _frame(self, observation: Any) -> Any:
        # Copy: the environment may reuse its observation buffer.
        space: Any = self.env.observation_space
        return fit(observation, space.dtype, space.shape).copy()
