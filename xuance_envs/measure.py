"""How stepping is timed: one home for the demo, the autotuner and the benchmarks.

Cores of shared machines change speed from one second to the next, so two figures can be compared
only when they were taken close together. :func:`measure` therefore times its runners in *rounds*:
every runner once, then every runner again, each second round in reverse order. What is reported
is the median over the rounds, and a ratio of two runners is the median of the ratios *within*
each round.

Before each timed run, and outside of it:

* Python's garbage is collected. The collector stays on during the run: whoever makes garbage
  pays for it, and nobody pays for what ran before;
* a short pause lets helpers of the runner before fall asleep, so that one runner at a time is busy;
* a few untimed steps bring caches and sleeping workers back.

The actions are drawn ahead of time, the same ones for everybody.
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
    """What :func:`measure` can time: environments that are ready to be stepped."""

    num_envs: int

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; the seconds that took."""


class Steppable(Protocol):
    """A vector environment, of whichever library."""

    def step(self, actions: Any, /) -> Any:
        """Step every environment once."""


class SampledSpace(Protocol):
    """The part of a Gymnasium space that :func:`sample_actions` uses."""

    def seed(self, seed: int, /) -> Any:
        """Start the space's generator afresh."""

    def sample(self) -> Any:
        """Draw one element."""


Progress = Callable[[str, float], None]
"""Called with a runner's name and its latest environment steps per second."""


class StepLoop:
    """A runner that calls ``step`` of a vector environment, over and over the same actions.

    The environment must have been reset, and stays the caller's to close.
    """

    def __init__(self, vec_env: Steppable, num_envs: int, actions: Sequence[Any]) -> None:
        """Make ready to step.

        Args:
            vec_env: the environments, after their first ``reset``.
            num_envs: how many environments one ``step`` steps.
            actions: what to give to ``step``, one entry per call, from the start again at the end.
        """
        self.num_envs = num_envs
        self._vec_env = vec_env
        self._actions = itertools.cycle(actions)

    def run(self, steps: int) -> float:
        """Step every environment ``steps`` times; the seconds that took."""
        step = self._vec_env.step
        batches = itertools.islice(self._actions, steps)
        start = time.perf_counter()
        for actions in batches:
            step(actions)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Throughput:
    """What was measured of one runner.

    Attributes:
        name: the runner's name.
        num_envs: environments stepped at a time.
        rates: environment steps per second, one figure per round.
    """

    name: str
    num_envs: int
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """Environment steps per second: the median round."""
        return float(np.median(self.rates))

    @property
    def best(self) -> float:
        """Environment steps per second: the quickest round."""
        return max(self.rates)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Environment steps per second: half of the rounds lie between these two."""
        low, high = np.percentile(self.rates, (25, 75))
        return float(low), float(high)

    @property
    def spread(self) -> float:
        """The interquartile range as a fraction of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    def relative_to(self, other: Throughput) -> float:
        """How many times as fast as ``other``: the median of the ratios within each round."""
        return float(np.median(np.divide(self.rates, other.rates)))


def sample_actions(
    space: SampledSpace, num_envs: int, *, seed: int = 0, steps: int | None = None
) -> list[Any]:
    """Random actions for many steps; the space's own generator is left alone.

    Args:
        space: the action space of one environment.
        num_envs: actions per step.
        seed: the same seed gives the same actions.
        steps: for how many steps; None for as many as are drawn in a moment.

    Returns:
        One entry per step: an array with ``num_envs`` rows, or, when the actions are neither
        arrays nor numbers, a list of ``num_envs`` actions.
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
        runners: what to time, by name. They are neither made nor closed here.
        rounds: timed runs of each runner, after a warm-up of about ``seconds``.
        seconds: about how long each run lasts.
        progress: called once per warm-up and once per timed run (:func:`progress_ticks` in all).

    Returns:
        The figures by name, in the order of ``runners``.

    Raises:
        ValueError: when ``rounds`` is below 1 or ``seconds`` is not positive.
    """
    if rounds < 1:
        raise ValueError(f"expected at least 1 round, got rounds={rounds}")
    if not seconds > 0:
        raise ValueError(f"expected a positive duration, got seconds={seconds}")

    def report(name: str, rate: float) -> None:
        if progress is not None:
            progress(name, rate)

    latest: dict[str, float] = {}
    for name, runner in runners.items():
        latest[name] = _warm_up(runner, seconds)
        report(name, latest[name])

    rates: dict[str, list[float]] = {name: [] for name in runners}
    order = list(runners)
    for _ in range(rounds):
        for name in order:
            latest[name] = _timed_run(runners[name], latest[name], seconds)
            rates[name].append(latest[name])
            report(name, latest[name])
        order.reverse()
    return {
        name: Throughput(name, runner.num_envs, tuple(rates[name]))
        for name, runner in runners.items()
    }


def progress_ticks(runners: int, rounds: int) -> int:
    """How often :func:`measure` calls ``progress`` for so many runners and rounds."""
    return runners * (rounds + 1)


def _warm_up(runner: Runner, seconds: float) -> float:
    """Step for about ``seconds``; environment steps per second at the end of it."""
    steps, spent = 1, 0.0
    while True:
        elapsed = runner.run(steps)
        spent += elapsed
        if spent >= seconds:
            return steps * runner.num_envs / elapsed
        steps *= 2


def _timed_run(runner: Runner, expected_rate: float, seconds: float) -> float:
    """Environment steps per second of one run of about ``seconds``."""
    steps = max(1, round(expected_rate * seconds / runner.num_envs))
    gc.collect(1)  # of what the run before left; all there is takes longer than many a run
    time.sleep(SETTLE_SECONDS)
    runner.run(max(1, round(steps * LEAD_IN)))
    return steps * runner.num_envs / runner.run(steps)
