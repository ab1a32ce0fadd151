"""Episode statistics in infos."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.reward_rows import as_python_values
from xuance_envs.transforms.transform import Transform
from xuance_envs.transforms.transform_batch import Batch
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["EpisodeStatistics"]

_RunningEpisodes = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]
"""Returns, lengths and start times of the current episodes."""


class EpisodeStatistics(Transform):
    """Add each episode's return, length and duration to the info of its last step.

    ``infos[i]["episode"]`` is a dict with Gymnasium's keys: ``r`` is the sum of the rewards before
    any transform, ``l`` the number of steps, and ``t`` the duration in seconds. For vector rewards,
    ``r`` is an array ``(k,)``, as in mo-gymnasium. The dict is built when it is first read. A
    step that truncates episodes because a worker was restarted is not counted.

    Args:
        vec_env: the vectorized environment.
        keep_raw: as for :class:`~xuance_envs.transforms.transform.Transform`.

    Example:
        >>> from xuance_envs import DummyVecEnv, Gym_Env
        >>> from xuance_envs.transforms import EpisodeStatistics, ScaleRewards
        >>> envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 3)
        >>> with EpisodeStatistics(ScaleRewards(envs, 0.01)) as envs:
        ...     obs, infos = envs.reset(seed=0)
        ...     while "episode" not in infos[0]:
        ...         *_, infos = envs.step([1, 1, 1])
        >>> infos[0]["episode"]["r"], infos[0]["episode"]["l"]
        (8.0, 8)
    """

    _state: _RunningEpisodes

    def __init__(self, vec_env: VecEnv, *, keep_raw: bool = False) -> None:
        super().__init__(vec_env, keep_raw=keep_raw)
        count = self.num_envs
        started_at = np.full(count, perf_counter())
        returns = np.zeros(self.raw_results.rewards.shape)
        self._state = returns, np.zeros(count, np.int64), started_at

    def _env_state(self, env: int) -> tuple[Any, int, float]:
        returns, lengths, started_at = self._state
        return returns[env].tolist(), int(lengths[env]), perf_counter() - float(started_at[env])

    def _restore_env_state(
        self, ids: Sequence[int], shares: Sequence[tuple[Any, int, float]], obs: Any
    ) -> Any:
        state = returns, lengths, started_at = self._copied()
        for env, (score, length, seconds) in zip(ids, shares, strict=True):
            returns[env], lengths[env], started_at[env] = score, length, perf_counter() - seconds
        self._state = state
        return obs

    def _restart_episodes(self, envs: NDArray[np.intp]) -> None:
        self._state = returns, lengths, started_at = self._copied()
        returns[envs], lengths[envs], started_at[envs] = 0, 0, perf_counter()

    def _transform(self, batch: Batch) -> _RunningEpisodes:
        state = returns, lengths, started_at = self._copied()
        at = batch.at
        if batch.began is None or not batch.began.all():
            returns[at] += self.raw_results.exact_rewards
            lengths[at] += 1
        if len(batch.ended):
            lengths[batch.envs_of_rows(batch.lost_rows)] -= 1
            envs, now = batch.envs_of_rows(batch.ended), perf_counter()
            columns = returns[envs], lengths[envs], now - started_at[envs]
            finished = zip(batch.ended.tolist(), *map(as_python_values, columns), strict=True)
            infos = {row: partial(_episode_info, *numbers) for row, *numbers in finished}
            batch.add_to_infos("episode", infos)
            returns[envs], lengths[envs], started_at[envs] = 0, 0, now
        if batch.began is not None:
            envs = batch.envs_of_rows(batch.began.nonzero()[0])
            returns[envs], lengths[envs], started_at[envs] = 0, 0, perf_counter()
        return state

    def _copied(self) -> _RunningEpisodes:
        returns, lengths, started_at = self._state
        return returns.copy(), lengths.copy(), started_at.copy()


def _episode_info(score: Any, length: int, seconds: float) -> dict[str, Any]:
    return {"r": score, "l": length, "t": round(seconds, 6)}
