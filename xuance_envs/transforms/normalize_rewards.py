"""Normalization of rewards by the standard deviation of the discounted return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import shape_of_rewards
from xuance_envs.errors import EnvError
from xuance_envs.transforms.moments import (
    MAX_MAGNITUDE,
    NOT_FINITE,
    MomentBuffers,
    Moments,
    check_scale,
    env_id_of,
    find_worst,
    moments_from_dict,
    moments_to_dict,
)
from xuance_envs.transforms.rewards import RewardTransform
from xuance_envs.transforms.stateful_transform import transforms_of
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.arguments import checked_fraction
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["NormalizeRewards"]


class _Returns(NamedTuple):
    """Discounted returns, a buffer for the next ones, and the moments of all returns so far."""

    current: NDArray[np.float64]
    spare: NDArray[np.float64]
    moments: Moments


class NormalizeRewards(RewardTransform):
    r"""Divide rewards by the running standard deviation of the discounted return.

    .. math:: R \leftarrow \gamma R + r, \qquad
        \mathrm{clip}\left(\frac{r}{\sqrt{\sigma^2(R) + \epsilon}}, -c, c\right)

    Each environment has its own R, which restarts at 0 with each episode. While training, each call
    first updates the statistics with the returns of all environments that stepped, and then divides
    their rewards. A step that truncates episodes because a worker was restarted is not counted. The
    mean is not subtracted, because this would change the optimal policy. Each component of a vector
    reward is normalized by its own returns.

    Args:
        vec_env: the vectorized environment.
        gamma: discount factor from 0 to 1, ideally the learning algorithm's.
        epsilon: added to the variance; above 0.
        clip: largest magnitude of the result, above 0; ``math.inf`` for no limit.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Raises:
        ValueError: an argument is out of range, or the rewards are already normalized.
        EnvError: in ``step`` or ``recv``, while training, a reward or return is NaN or infinite, or
            above 1e150 and too large to square. The call's results are lost, and this transform
            does not count them. The environments stay usable.

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
        gamma = checked_fraction(f"{name}: gamma", gamma)
        for inner in transforms_of(vec_env):
            if isinstance(inner, NormalizeRewards):
                raise ValueError(f"{name}: the rewards of {inner!r} are already normalized")
        super().__init__(vec_env, keep_raw=keep_raw)
        self._gamma = np.array(gamma)
        self._clip = float(clip)
        self._bounds = np.array(-self._clip), np.array(self._clip)
        shape = shape_of_rewards(self.reward_space)
        self._buffers = MomentBuffers(self.num_envs, shape)
        rows = self.num_envs, *shape
        empty = Moments.empty(shape, float(epsilon))
        self._state = _Returns(np.zeros(rows), np.zeros(rows), empty)
        self.declare_rewards(shape, -self._clip, self._clip)
        self._environment = env_id_of(vec_env)

    @property
    def count(self) -> int:
        """Number of returns in the statistics, over all environments."""
        return self._state.moments.count

    @property
    def mean(self) -> Any:
        """Mean of the returns, a number; ``(k,)`` for vector rewards."""
        return copy(self._state.moments.mean)

    @property
    def variance(self) -> Any:
        """Population variance of the returns, shaped like ``mean``; 1 before the first return."""
        return copy(self._state.moments.variance)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Discounted return R of each environment, ``(num_envs,)`` or ``(num_envs, k)`` float64."""
        return self._state.current.copy()

    @override
    def learned(self) -> dict[str, Any]:
        return moments_to_dict(self._environment, {"": self._state.moments})

    @override
    def prepare_learned(self, learned: Mapping[str, Any]) -> Callable[[], None]:
        own = {"": self._state.moments}
        moments = moments_from_dict(type(self).__name__, self._environment, own, learned)
        return lambda: setattr(self, "_state", self._state._replace(moments=moments[""]))

    def _env_state(self, env: int) -> Any:
        return self._state.current[env].tolist()

    def _restore_env_state(self, ids: Sequence[int], shares: Sequence[Any], obs: Any) -> Any:
        current = self._state.current.copy()
        current[list(ids)] = shares
        self._state = self._state._replace(current=current)
        return obs

    def _restart_episodes(self, envs: NDArray[np.intp]) -> None:
        current = self._state.current.copy()
        current[envs] = 0
        self._state = self._state._replace(current=current)

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
        # Fast check: if the sum of squares is within the limit, every square is. The sum is
        # finite, because the update above rejects larger rewards.
        if (
            rewards.ndim > 1
            or not (self.training and is_plain)
            or not rewards.dot(rewards) <= limit * limit
        ):
            exact.clip(*self._bounds, out=exact)
        # Faster than `_Returns(...)`.
        return exact, tuple.__new__(_Returns, (after, current, moments))

    def _error(self, returns: NDArray[np.float64], rewards: NDArray[Any], batch: Batch) -> EnvError:
        _, (row, *_) = find_worst(returns)
        number = batch.call_number_after(self._steps)
        return EnvError(
            batch.env_ids[row],
            "step",
            f"{type(self).__name__}: expected finite returns of at most {MAX_MAGNITUDE:g} in "
            f"magnitude, got the return {returns[row]} after the reward {rewards[row]} in step "
            f"{number} since the last full reset; this transform did not count that step",
        )


def _stepped_rows(batch: Batch) -> NDArray[np.bool_]:
    """Return a mask of the rows that contain a real step, neither a reset nor a failure."""
    stepped = np.ones(len(batch.rewards), np.bool_) if batch.began is None else ~batch.began
    stepped[batch.lost_rows] = False
    return stepped
