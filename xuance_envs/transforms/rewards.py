"""Transforms of rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite, isnan
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import shape_of_rewards
from xuance_envs.engine.data.space_rows import read_only
from xuance_envs.engine.data.step_arrays import as_float32
from xuance_envs.errors import counted
from xuance_envs.transforms.transform import Transform
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.arguments import checked_number, checked_weights
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["ClipRewards", "RewardTransform", "ScalarizeRewards", "ScaleRewards", "TransformRewards"]


class RewardTransform(Transform):
    """Base class for transforms of rewards; define :meth:`_rewarded`.

    Results of a reset have the reward 0, before and after the transform. A subclass that changes
    the shape or the bounds of vector rewards calls :meth:`declare_rewards`.

    Args:
        vec_env: the vectorized environment.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.
    """

    def declare_rewards(
        self, shape: tuple[int, ...], low: Any = -np.inf, high: Any = np.inf
    ) -> None:
        """Declare the shape and bounds of the transformed rewards; call it in the constructor.

        This sets ``reward_space``: a Box for vectors, None for numbers.

        Args:
            shape: shape of one reward: ``()`` for numbers, ``(k,)`` for vectors.
            low: smallest reward: a number, or one number per component.
            high: largest reward, in the same form.
        """
        self.reward_space = None
        if shape:
            least, most = (np.broadcast_to(bound, shape) for bound in (low, high))
            self.reward_space = Box(least.astype(np.float32), most.astype(np.float32))
        if self.buf_rews.shape[1:] != shape:
            self._exact_rewards = np.zeros((self.num_envs, *shape))
            self.buf_rews = self._exact_rewards.astype(np.float32)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        """Return new float64 rewards for ``batch.given_rewards``, and the next ``_state``."""
        raise NotImplementedError

    def _transform(self, batch: Batch) -> Any:
        exact, state = self._rewarded(batch)
        if batch.began is not None:
            exact[batch.began] = 0
        rewards = as_float32(exact)
        batch.exact_rewards = exact
        batch.rewards = rewards if batch.rewards.flags.writeable else read_only(rewards)
        return state


class ClipRewards(RewardTransform):
    """Clip rewards to bounds; vector rewards elementwise.

    Args:
        vec_env: the vectorized environment.
        low: smallest reward; -1.0 by default.
        high: largest reward; 1.0 by default.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: ``low`` is not below ``high``.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import ClipRewards
        >>> envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> with ClipRewards(envs, high=0.5) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step([0, 1, 0])
        >>> rewards, envs.raw_rewards
        (array([0.5, 0.5, 0.5], dtype=float32), array([1., 1., 1.], dtype=float32))
    """

    def __init__(
        self, vec_env: VecEnv, low: float = -1.0, high: float = 1.0, *, keep_raw: bool = False
    ) -> None:
        name = type(self).__name__
        self._high = checked_number(f"{name}: high", high, lambda value: not isnan(value))
        expected = f"a number below {high}"
        self._low = checked_number(f"{name}: low", low, lambda value: value < self._high, expected)
        super().__init__(vec_env, keep_raw=keep_raw)
        self.declare_rewards(shape_of_rewards(self.reward_space), self._low, self._high)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        return np.clip(batch.given_rewards, self._low, self._high, dtype=np.float64), self._state


class ScaleRewards(RewardTransform):
    """Multiply rewards by a constant; vector rewards elementwise.

    Args:
        vec_env: the vectorized environment.
        scale: the factor.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: ``scale`` is not finite.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import ScaleRewards
        >>> with ScaleRewards(DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3), 0.1) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step([0, 1, 0])
        >>> rewards
        array([0.1, 0.1, 0.1], dtype=float32)
    """

    def __init__(self, vec_env: VecEnv, scale: float, *, keep_raw: bool = False) -> None:
        name = f"{type(self).__name__}: scale"
        self._scale = checked_number(name, scale, isfinite, "a finite number")
        super().__init__(vec_env, keep_raw=keep_raw)
        if self.reward_space is not None:
            least, most = self.reward_space.low, self.reward_space.high
            bounds = (least * self._scale, most * self._scale) if self._scale else (0.0, 0.0)
            self.declare_rewards(self.reward_space.shape, np.minimum(*bounds), np.maximum(*bounds))

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        return np.multiply(batch.given_rewards, self._scale, dtype=np.float64), self._state


class TransformRewards(RewardTransform):
    """Apply a function to rewards.

    Args:
        vec_env: the vectorized environment.
        function: function of the rewards ``(n,)`` float64 of n environments, for any n. It returns
            n numbers; result i may depend only on reward i. For vector rewards ``(n, k)``, it
            returns ``(n,)`` or ``(n, j)``. The constructor finds out which: it calls the function
            with an array of ones.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: the function's result has the wrong shape or dtype. ``step`` and ``recv`` raise
            this, and with vector rewards already the constructor.

    Example:
        >>> import numpy as np
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import TransformRewards
        >>> envs = DummyVecEnv([lambda: Gym_Env("Pendulum-v1")] * 3)
        >>> with TransformRewards(envs, np.sign) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step(np.zeros((3, 1), np.float32))
        >>> rewards
        array([-1., -1., -1.], dtype=float32)
    """

    def __init__(
        self, vec_env: VecEnv, function: Callable[[NDArray[Any]], Any], *, keep_raw: bool = False
    ) -> None:
        super().__init__(vec_env, keep_raw=keep_raw)
        self._function = function
        self._shape: tuple[int, ...] = ()
        if self.reward_space is not None:
            rewards = np.ones((self.num_envs, *self.reward_space.shape))
            made = np.asarray(function(rewards))
            self._shape = made.shape[1:2] if made.ndim == 2 and made.shape[1] else ()
            self._checked(made, self.num_envs)
            self.declare_rewards(self._shape)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        count = len(batch.rewards)
        if batch.began is not None and batch.began.all():
            return np.zeros((count, *self._shape)), self._state
        return self._checked(np.asarray(self._function(batch.given_rewards)), count), self._state

    def _checked(self, made: NDArray[Any], count: int) -> NDArray[np.float64]:
        if made.shape != (count, *self._shape) or made.dtype.kind not in "biuf":
            rewards = counted(count, "reward")
            vectors = f" of {counted(self._shape[0], 'component')}" if self._shape else ""
            raise ValueError(
                f"{type(self).__name__}: expected {rewards}{vectors} from the function, "
                f"got an array of shape {made.shape} and dtype {made.dtype}"
            )
        return made.astype(np.float64)


class ScalarizeRewards(RewardTransform):
    """Turn vector rewards into numbers: the weighted sum of their components.

    After this transform, ``reward_space`` is None. ``raw_rewards`` has the vectors. The weights are
    part of ``state_dict``.

    Args:
        vec_env: the vectorized environment, whose ``reward_space`` has the shape ``(k,)``.
        weights: k numbers.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: the rewards are numbers, or ``weights`` are not k finite numbers.

    Example:
        >>> import gymnasium
        >>> import numpy as np
        >>> from xuance_envs import DummyVecEnv
        >>> from xuance_envs.transforms import ScalarizeRewards
        >>> class TwoGoals(gymnasium.Wrapper):
        ...     reward_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        ...     def step(self, action):
        ...         obs, reward, *rest = self.env.step(action)
        ...         return obs, np.array([reward, 0.0 - action]), *rest
        >>> envs = DummyVecEnv([lambda: TwoGoals(gymnasium.make("CartPole-v1"))] * 3)
        >>> with ScalarizeRewards(envs, [1, 0.5]) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     obs, rewards, *_ = envs.step([0, 1, 0])
        >>> rewards, envs.raw_rewards.tolist()
        (array([1. , 0.5, 1. ], dtype=float32), [[1.0, 0.0], [1.0, -1.0], [1.0, 0.0]])
    """

    def __init__(self, vec_env: VecEnv, weights: ArrayLike, *, keep_raw: bool = False) -> None:
        super().__init__(vec_env, keep_raw=keep_raw)
        self.weights = weights
        self.declare_rewards(())

    @property
    def weights(self) -> NDArray[np.float64]:
        """Component weights, ``(k,)`` float64; assigned weights apply to the next results."""
        return self._weights.copy()

    @weights.setter
    def weights(self, weights: ArrayLike) -> None:
        name, space = type(self).__name__, self.vec_env.reward_space
        self._weights = checked_weights(name, weights, space)

    @override
    def learned(self) -> dict[str, Any]:
        return {"weights": self._weights.tolist()}

    @override
    def prepare_learned(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        name, space = type(self).__name__, self.vec_env.reward_space
        if learned.keys() != {"weights"}:
            got = ", ".join(f"{name}.{key}" for key in sorted(learned))
            raise ValueError(f"state: expected the key {name}.weights, got {got}")
        weights = checked_weights(name, learned["weights"], space)
        return lambda: setattr(self, "weights", weights)

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], Any]:
        # Unlike `@`, this is bitwise equal for every batch size.
        return (batch.given_rewards * self._weights).sum(axis=-1), self._state
