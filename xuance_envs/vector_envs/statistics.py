"""Timing statistics of workers."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from xuance_envs.engine.driver import Driver

__all__ = ["WorkerStatistics"]


@dataclass(frozen=True)
class WorkerStatistics:
    """Step times of one worker's group of environments since the worker started.

    Attributes:
        env_ids: indices of the worker's environments.
        steps: number of steps of the group.
        busy_fraction: fraction of the time that the worker spent in steps, measured from the start
            of its first step to the end of its last step. NaN before the first step.
        p50: median time in seconds of a step of the group, including resets, over the last 1024
            steps. NaN before the first step.
        p99: 99th percentile of the same times.
        slowest_env: index of the slowest environment; None before the first step, and with
            ``from_gymnasium``, where one call steps all environments.
        slowest_time: mean step time of the slowest environment in seconds, including resets. Every
            64th step is measured. NaN if ``slowest_env`` is None.

    Example:
        >>> from xuance_envs import Gym_Env, SubprocVecEnv_Gym
        >>> with SubprocVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 4, in_series=2) as envs:
        ...     _ = envs.reset(seed=0)
        ...     for _ in range(10):
        ...         _ = envs.step([0, 1, 0, 1])
        ...     workers = envs.statistics()
        >>> [(worker.env_ids, worker.steps) for worker in workers]
        [(range(0, 2), 10), (range(2, 4), 10)]
        >>> 0 < workers[0].p50 <= workers[0].p99 < 1
        True
    """

    env_ids: range
    steps: int
    busy_fraction: float
    p50: float
    p99: float
    slowest_env: int | None
    slowest_time: float

    @classmethod
    def of(cls, driver: Driver) -> WorkerStatistics:
        """Return the statistics of a driver's group."""
        times = driver.times()
        slowest = None if times.slowest is None else driver.lo + times.slowest
        return cls(range(driver.lo, driver.hi), *astuple(replace(times, slowest=slowest)))
