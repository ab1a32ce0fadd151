"""Rewards by the deviation of the discounted return so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.errors import EnvError
from xuance_envs.transforms.moments import (
    NOT_FINITE,
    MomentBuffers,
    Moments,
    check_scale,
    find_unusable,
)
from xuance_envs.transforms.moments_io import env_id_of, moments_from_dict, moments_to_dict
from xuance_envs.transforms.rewards import RewardTransform
from xuance_envs.transforms.transform import transforms_of
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["NormalizeRewards"]


class _Returns(NamedTuple):
    """What is known of rewards.

    Attributes:
        now: ``(num_envs,)`` float64: the discounted return of each environment's episode so far.
        spare: room for the next ones.
        moments: of all returns so far.
    """

    current: NDArray[np.float64]
    spare: NDArray[np.float64]
    moments: Moments


class NormalizeRewards(RewardTransform):
    r"""Rewards by the deviation of the discounted return.

    .. math:: R \leftarrow \gamma R + r, \qquad
        \mathrm{clip}\left(\frac{r}{\sqrt{\sigma^2(R) + \epsilon}}, -c, c\right)

    R is an environment's own, and starts anew at 0 with each of its episodes. Each call first
    counts the returns of all environments that it brought a step of, and then divides. The row of a
    worker that was lost counts nothing. The mean is not subtracted, which would change what is
    worth striving for.

    Args:
        vec_env: the vector environment.
        gamma: the discount, best the one that is learned with.
        epsilon: added to the variance.
        clip: the largest magnitude of what is returned; ``math.inf`` for any.
        keep_raw: whether ``raw_observations`` are kept from the beginning.

    Attributes:
        count (int): returns counted.
        mean (float): their mean.
        variance (float): their variance, the population's; 1 before the first.
        returns (numpy.ndarray): ``(num_envs,)`` float64, R of each environment.

    Raises:
        ValueError: an argument is out of its range, or rewards are normalized already.
        EnvError: while it learns, a reward is NaN, infinite, or too large for its square; from
            ``step`` and ``recv``. It is not counted, what the call brought is lost, and the
            environments stay usable.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import NormalizeRewards
        >>> envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> with NormalizeRewards(envs) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     for _ in range(3):
        ...         obs, rewards, *_ = envs.step([0, 1, 0])
        >>> envs.returns.round(4), envs.raw_rewards
        (array([2.9701, 2.9701, 2.9701]), array([1., 1., 1.], dtype=float32))
    """

    _state: _Returns

    def __init__(
        self,
        vec_env: VecEnv,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        clip: float = 10.0,
        *,
        keep_raw: bool = False,
    ) -> None:
        name = type(self).__name__
        check_scale(name, epsilon, clip)
        if not 0 <= gamma <= 1:
            raise ValueError(f"{name}: gamma: expected a number from 0 to 1, got {gamma!r}")
        for inner in transforms_of(vec_env):
            if isinstance(inner, NormalizeRewards):
                raise ValueError(f"{name}: the rewards of {inner!r} are normalized already")
        super().__init__(vec_env, keep_raw=keep_raw)
        self._gamma = np.array(float(gamma))
        self._clip = float(clip)
        self._bounds = np.array(-self._clip), np.array(self._clip)
        self._buffers = MomentBuffers(self.num_envs, ())
        none = Moments.empty((), float(epsilon))
        self._state = _Returns(np.zeros(self.num_envs), np.zeros(self.num_envs), none)
        self._environment = env_id_of(vec_env)

    @property
    def count(self) -> int:
        """How many returns have been counted."""
        return self._state.moments.count

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return float(self._state.moments.mean)

    @property
    def variance(self) -> float:
        """The population's variance of the returns; 1 before the first."""
        return float(self._state.moments.variance)

    @property
    def returns(self) -> NDArray[np.float64]:
        """The discounted return of each environment's episode so far, ``(num_envs,)``."""
        return self._state.current.copy()

    @override
    def learned(self) -> dict[str, Any]:
        return moments_to_dict(self._environment, {"": self._state.moments})

    @override
    def prepare_learned(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        own = {"": self._state.moments}
        moments = moments_from_dict(type(self).__name__, self._environment, own, learned)

        def learn() -> None:
            self._state = self._state._replace(moments=moments[""])

        return learn

    def _env_state(self, env: int) -> float:
        return float(self._state.current[env])

    def _restore_env_state(self, ids: Sequence[int], shares: Sequence[float], obs: Any) -> Any:
        current = self._state.current.copy()
        current[list(ids)] = shares
        self._state = self._state._replace(current=current)
        return obs

    def _rewarded(self, batch: Batch) -> tuple[NDArray[np.float64], _Returns]:
        rewards = batch.given_rewards
        current, spare, moments = self._state
        is_plain = batch.envs is None and batch.began is None
        if is_plain:
            after = returns = np.multiply(current, self._gamma, out=spare)
            np.add(returns, rewards, out=returns)
        else:
            after = current.copy()
            returns = current[batch.at] * self._gamma + rewards
        ended = batch.ended
        if self.training:
            counted = returns if is_plain and not len(ended) else returns[_stepped_rows(batch)]
            try:
                moments = moments.with_samples(self._buffers, counted)
            except NOT_FINITE:
                raise self._error(returns, rewards, batch) from None
        if len(ended):
            returns[ended] = 0
        if not is_plain:
            if batch.began is not None:
                returns[batch.began] = 0
            after[batch.at] = returns
        exact = np.divide(rewards, moments.deviation)
        limit = self._clip * moments.deviation
        # What was counted is small enough for its square; in most steps the squares' sum tells
        # that none is beyond the limit.
        if not (self.training and is_plain and rewards.dot(rewards) <= limit * limit):
            exact.clip(*self._bounds, out=exact)
        return exact, tuple.__new__(_Returns, (after, current, moments))  # as its own, and quicker

    def _error(self, returns: NDArray[np.float64], rewards: NDArray[Any], batch: Batch) -> EnvError:
        row = int(find_unusable(returns)[0, 0])
        env = row if batch.envs is None else int(batch.envs[row])
        number = batch.call_number_after(self._steps)
        return EnvError(
            env,
            "step",
            f"{type(self).__name__}: expected a number to normalize, got the reward "
            f"{rewards[row]} in step {number} since all were reset; nothing "
            "of that step has been counted",
        )


def _stepped_rows(batch: Batch) -> NDArray[np.bool_]:
    """Which returns were made by steps, ``(k,)`` bool."""
    stepped = np.ones(len(batch.rewards), np.bool_) if batch.began is None else ~batch.began
    stepped[batch.lost_rows] = False
    return stepped
