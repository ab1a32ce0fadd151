"""What a vector environment tells about the time its steps take."""

from __future__ import annotations

from dataclasses import dataclass

from xuance_envs.engine.driver import Driver

__all__ = ["WorkerStatistics"]


@dataclass(frozen=True)
class WorkerStatistics:
    """How long the steps of one worker's environments took, since it was started.

    Attributes:
        env_ids: the environments that live in it.
        steps: how often it has stepped all of them.
        busy_fraction: share of the time, from its first step's begin to its last step's end,
            that it spent in steps; the rest it waited. NaN before the first step.
        p50: median time of a step of all its environments with the resets that belong to it, in
            seconds, of the last 1024; NaN before the first.
        p99: 99th percentile, likewise.
        slowest_env: the environment that takes longest; None before the first step.
        slowest_time: mean time of that environment's step, in seconds, resets included, over
            every 64th step.

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
        """Those of one group.

        Args:
            driver: of the group.
        """
        times = driver.times()
        return cls(
            range(driver.lo, driver.hi),
            times.steps,
            times.busy_fraction,
            times.p50,
            times.p99,
            None if times.slowest is None else driver.lo + times.slowest,
            times.slowest_time,
        )
