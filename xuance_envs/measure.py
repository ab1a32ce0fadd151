"""Throughput measurements, shared by the demo, the autotuner and the benchmarks.

CPU cores of shared machines change speed from one second to the next, so only figures measured at
almost the same time are comparable. :func:`measure` therefore times its runners in interleaved
*rounds*: each round runs every runner once, every second round in reverse order. A runner's
throughput is the median over the rounds. The ratio of two runners is the median of the ratios
within each round.

Each timed run is preceded by untimed preparation:

* Garbage collection of young objects, so that no run collects the previous runner's objects. The
  collector stays enabled, so each run collects its own objects.
* A short pause, in which the previous runner's helper processes go to sleep.
* A few steps, which warm up caches and wake sleeping workers.

Actions are sampled in advance and are the same for all runners.
"""

from __future__ import annotations

import copy
import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

__all__ = ["Runner", "StepLoop", "Throughput", "measure", "progress_ticks", "sample_actions"]

SETTLE_SECONDS = 0.01
LEAD_IN = 0.05
SAMPLED_ACTIONS = 16_384


class Runner(Protocol):
    """Protocol of a runner for :func:`measure`: environments that are ready to step."""

    num_envs: int

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; return the duration in seconds."""


Progress = Callable[[str, float], None]
"""Callback that receives a runner's name and its latest environment steps per second."""


class StepLoop:
    """A runner that calls a vectorized environment's ``step`` with a fixed cycle of actions.

    Args:
        vec_env: a vectorized environment of any library, after its first ``reset``. The runner
            does not close it.
        num_envs: number of environments that one ``step`` steps.
        actions: arguments for ``step``, one per call, in a cycle.
    """

    def __init__(self, vec_env: Any, num_envs: int, actions: Sequence[Any]) -> None:
        self.num_envs = num_envs
        self._vec_env = vec_env
        self._actions = itertools.cycle(actions)

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; return the duration in seconds."""
        step = self._vec_env.step
        batches = itertools.islice(self._actions, steps)
        start = time.perf_counter()
        for actions in batches:
            step(actions)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Throughput:
    """The measured throughput of one runner.

    Attributes:
        name: the runner's name.
        num_envs: environments stepped in one call.
        rates: environment steps per second, one figure per round.
    """

    name: str
    num_envs: int
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """Environment steps per second in the median round."""
        return float(np.median(self.rates))

    @property
    def best(self) -> float:
        """Environment steps per second in the fastest round."""
        return max(self.rates)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the environment steps per second."""
        low, high = np.percentile(self.rates, (25, 75))
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """Interquartile range as a fraction of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    def relative_to(self, other: Throughput) -> float:
        """Return the median, over the rounds, of the speed ratio to ``other``."""
        return float(np.median(np.divide(self.rates, other.rates)))


def sample_actions(
    space: Any, num_envs: int, *, seed: int = 0, steps: int | None = None
) -> list[Any]:
    """Sample random actions for many steps, without using the space's own generator.

    Args:
        space: the action space of one environment, with the methods ``seed`` and ``sample``.
        num_envs: actions per step.
        seed: seed of the actions.
        steps: number of steps; None for 32 to 2,048, fewer with more environments.

    Returns:
        The actions of each step, as an array with ``num_envs`` rows, or as a list of ``num_envs``
        actions if they are neither arrays nor numbers.
    """
    space = copy.deepcopy(space)
    space.seed(seed)
    if steps is None:
        steps = min(max(SAMPLED_ACTIONS // num_envs, 32), 2048)
    rows = [[space.sample() for _ in range(num_envs)] for _ in range(steps)]
    if isinstance(rows[0][0], (np.ndarray, np.generic)):
        return [np.stack(row) for row in rows]
    return rows


def measure(
    runners: Mapping[str, Runner],
    *,
    rounds: int = 5,
    seconds: float = 0.5,
    progress: Progress | None = None,
) -> dict[str, Throughput]:
    """Time the runners in interleaved rounds.

    Args:
        runners: runners by name. This function does not close them.
        rounds: timed runs of each runner, after a warm-up of about ``seconds``.
        seconds: approximate duration of each run.
        progress: called after each warm-up and each timed run, :func:`progress_ticks` times in all.

    Returns:
        The measurements by name, in the order of ``runners``.

    Raises:
        ValueError: ``rounds`` is below 1 or ``seconds`` is not positive.
    """
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    if not seconds > 0:
        raise ValueError(f"seconds: expected a positive number, got {seconds}")

    report = progress or (lambda name, rate: None)
    rates: dict[str, list[float]] = {}
    for name, runner in runners.items():
        rates[name] = [_warm_up(runner, seconds)]
        report(name, rates[name][0])
    order = list(runners)
    for _ in range(rounds):
        for name in order:
            rates[name].append(_timed_run(runners[name], rates[name][-1], seconds))
            report(name, rates[name][-1])
        order.reverse()
    return {
        name: Throughput(name, runner.num_envs, tuple(rates[name][1:]))
        for name, runner in runners.items()
    }


def progress_ticks(runners: int, rounds: int) -> int:
    """Return the number of times that :func:`measure` calls ``progress``."""
    return runners * (rounds + 1)


def _warm_up(runner: Runner, seconds: float) -> float:
    """Step for about ``seconds``; return the last run's environment steps per second."""
    steps, spent = 1, 0.0
    while True:
        elapsed = runner.run(steps)
        spent += elapsed
        if spent >= seconds:
            return steps * runner.num_envs / elapsed
        steps *= 2


def _timed_run(runner: Runner, expected_rate: float, seconds: float) -> float:
    """Return the environment steps per second of one run of about ``seconds``."""
    steps = max(1, round(expected_rate * seconds / runner.num_envs))
    gc.collect(1)  # a full collection can take longer than the run
    time.sleep(SETTLE_SECONDS)
    runner.run(max(1, round(steps * LEAD_IN)))
    return steps * runner.num_envs / runner.run(steps)
