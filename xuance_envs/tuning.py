"""Which backend is fastest for an environment: a measurement of about a second decides.

Whether processes pay depends on how long a step takes against the 20 to 100 µs that waking them
costs, and on how many environments share that cost. Environments that wait, for a network or
another simulator, are another matter: they want a process each, however few CPUs there are.
What a step takes is measured with one environment. The CPU time it takes against the time on the
clock, and how often it goes to sleep by itself, tell those that compute from those that wait: on a
busy machine an environment that computes loses time, too, but does not sleep.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.errors import EnvError
from xuance_envs.measure import StepLoop, Throughput, measure, sample_actions
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

if sys.platform != "win32":
    import resource

__all__ = ["Autotuned", "Candidate", "autotune", "backend_class", "backend_for"]

logger = logging.getLogger("xuance_envs")

PROBE_SECONDS = 0.08
"""For how long one environment is stepped."""

ROUNDS = 6
ROUND_SECONDS = 0.015
"""How often, and for how long each time, each candidate is stepped.

The best time counts: whatever else a machine does makes a round slower, and never quicker.
"""

SAMPLED_STEPS = 64
"""For how many steps actions are drawn: drawing them can take longer than stepping."""

MAX_MAKING_SECONDS = 0.5
"""How long making all candidates' environments may take: only so many of them are made."""

SLOW_MAKING_SECONDS = 2.0
"""What takes longer, in seconds, is not made twice to learn how much of it was imports."""

MIN_ENVS_PER_CPU = 2
"""If that is not enough for so many per CPU, figures are estimated from one environment."""

MAX_WAITING_CPU_FRACTION = 0.7
MIN_SLEEPS_PER_STEP = 0.5
"""Environments are taken to wait if their steps use less of a CPU, and sleep so often each."""

CAN_COUNT_SLEEPS = sys.platform != "win32"

MAX_WORKERS = 64
"""The most processes that waiting environments are given."""

MIN_PARALLEL_SECONDS = 20e-6
"""Where stepping all environments here takes less, in seconds, no process can be faster."""

WORKER_OVERHEAD = 60e-6
"""About what a step costs besides that processes take part in, for estimates, in seconds.

Half of that where one of them is this one.
"""

MIN_EXPECTED_RATIO = 0.5
"""Only what may be expected to be within this of the fastest is measured."""

MEASUREMENT_TOLERANCE = 0.9
"""A measurement of a moment says little about which of two within this is the faster one.

Of those the one is taken that ought to be the fastest by the work to be done.
"""

SIMPLER_CHOICE_TOLERANCE = 0.97
"""A simpler choice is taken if it ought to be within this of that."""


def backend_class(name: str) -> Callable[..., VecEnv]:
    """The backend ``"dummy"``, ``"subproc"`` or ``"ray"``."""
    if name == "dummy":
        return DummyVecEnv
    if name == "subproc":
        return SubprocVecEnv
    from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym

    return RayVecEnv_Gym


@dataclass(frozen=True)
class Candidate:
    """A way of stepping the environments.

    Attributes:
        backend: as :func:`~xuance_envs.making.make_vec` takes it.
        options: for the backend's class.
        steps_per_second: environment steps per second; NaN where it was ruled out unmeasured.
        measured: whether that was measured, if need be with fewer environments, and not estimated
            from one.
    """

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    steps_per_second: float = math.nan
    measured: bool = False

    @property
    def name(self) -> str:
        """The backend and its options in words."""
        options = [
            key if value is True else f"{key}={value}" for key, value in self.options.items()
        ]
        return ", ".join([self.backend, *options])


@dataclass(frozen=True)
class Autotuned:
    """What was found out, and what follows from it; prints as a table.

    Attributes:
        num_envs: number of environments.
        step_time: seconds a step of one environment takes; NaN where it could not be stepped.
        cpu_fraction: which share of them it uses a CPU; likewise.
        candidates: what there was to choose from.
        choice: what was chosen.
        reason: why.

    Example:
        >>> from xuance_envs import make_vec
        >>> with make_vec("CartPole-v1", 1) as envs:
        ...     tuned = envs.autotuned
        >>> tuned.num_envs, tuned.choice.name
        (1, 'dummy')
        >>> 0 < tuned.step_time < 0.01
        True
    """

    num_envs: int
    step_time: float
    cpu_fraction: float
    candidates: tuple[Candidate, ...]
    choice: Candidate
    reason: str

    def __str__(self) -> str:
        width = max(len(each.name) for each in self.candidates)
        timed = (
            "not timed"
            if math.isnan(self.step_time)
            else f"{self.step_time * 1e6:,.1f} µs a step, {self.cpu_fraction:.0%} of it on a CPU"
        )
        lines = [f"{self.num_envs} environments, {timed}"]
        for each in self.candidates:
            rate = f"{each.steps_per_second:>12,.0f} steps/s"
            how = "" if each.measured else " (estimated)"
            if math.isnan(each.steps_per_second):
                rate, how = "not timed", ""
            mark = " <- chosen" if each.name == self.choice.name else ""
            lines.append(f"{each.name:<{width}}  {rate}{how}{mark}")
        return "\n".join([*lines, self.reason])


def autotune(
    env_fn: Callable[[], Any],
    num_envs: int,
    *,
    others: Mapping[str, Callable[[], VecEnv]] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Autotuned:
    """Finds out how best to step copies of an environment.

    The environments made for it are closed again.

    Args:
        env_fn: makes one environment.
        num_envs: how many there will be.
        others: further candidates, by the name of their backend.
        progress: called with a candidate's name and its environment steps per second, whenever
            something has been measured.

    Returns:
        The candidates with their figures, and the choice.

    Raises:
        ValueError: ``num_envs`` is below 1.
        EnvError: an environment failed.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import autotune
        >>> tuned = autotune(lambda: gymnasium.make("CartPole-v1"), 1)
        >>> tuned.choice.backend
        'dummy'
    """
    if num_envs < 1:
        raise ValueError(f"num_envs: expected at least 1, got {num_envs!r}")
    probe = _Probe(env_fn)
    if progress is not None:
        progress("one environment", 1 / probe.step_time)
    makers = dict(others or {})
    estimates = _estimates(probe, num_envs)
    plan = _Plan.of(estimates, probe, num_envs, bool(makers))
    figures = _measured(plan, makers, env_fn, progress)
    measured = _scaled_to_all(plan, figures, probe, num_envs)
    measured += [Candidate(name, {}, figures[name].best, True) for name in makers]
    by_name = {each.name: each for each in [*estimates, *measured]}
    candidates = tuple(by_name.values())
    # On a busy machine what has been measured is slower than what is estimated.
    comparable = [each for each in candidates if each.measured or not plan.candidates]
    choice = _chosen(comparable, {each.name: each.steps_per_second for each in estimates})
    tuned = Autotuned(
        num_envs, probe.step_time, probe.cpu_fraction, candidates, choice, plan.reason
    )
    logger.info("autotuned:\n%s", tuned)
    return tuned


def backend_for(
    env_fn: Callable[[], Any],
    num_envs: int,
    *,
    others: Mapping[str, Callable[[], VecEnv]] | None = None,
) -> Autotuned:
    """As :func:`autotune`; but environments may fail in a step with actions that are drawn.

    Some refuse what their masks do not allow. Without a measurement, processes are chosen where
    there are CPUs for them. What fails for another reason fails again where it is stepped.

    Args:
        env_fn: makes one environment.
        num_envs: how many there will be.
        others: further candidates, by the name of their backend.

    Raises:
        ValueError: ``num_envs`` is below 1.
        EnvError: an environment could not be made or reset.
    """
    try:
        return autotune(env_fn, num_envs, others=others)
    except EnvError as error:
        if error.command != "step":
            raise
        backend = "subproc" if num_envs > 1 and available_cpus() > 1 else "dummy"
        choice = Candidate(backend)
        reason = f"not measured: a step with an action drawn from its space failed: {error.reason}"
        tuned = Autotuned(num_envs, math.nan, math.nan, (choice,), choice, reason)
        logger.warning("autotuned:\n%s", tuned)
        return tuned


def _chosen(candidates: Sequence[Candidate], expected: Mapping[str, float]) -> Candidate:
    """The best candidate; where figures do not tell some apart, by what was expected of them."""
    close = MEASUREMENT_TOLERANCE * max(each.steps_per_second for each in candidates)
    best = [each for each in candidates if each.steps_per_second >= close]
    nearly = SIMPLER_CHOICE_TOLERANCE * max(expected.get(each.name, 0.0) for each in best)
    return next(each for each in best if expected.get(each.name, 0.0) >= nearly)


class _Probe:
    """One environment, stepped for a moment."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        start = time.perf_counter()
        with DummyVecEnv([env_fn]) as envs:
            self.making_time = time.perf_counter() - start
            if self.making_time < SLOW_MAKING_SECONDS:
                self.making_time = _seconds_to_make(env_fn)
            envs.reset(seed=0)
            loop = StepLoop(envs, 1, sample_actions(envs.action_space, 1, steps=SAMPLED_STEPS))
            loop.run(3)
            steps, wall, cpu, batch = 0, 0.0, 0.0, 1
            sleeps = 0
            while wall < PROBE_SECONDS:
                began, slept = time.process_time(), _sleeps()
                wall += loop.run(batch)
                cpu += time.process_time() - began
                sleeps += _sleeps() - slept
                steps += batch
                batch = min(2 * batch, 256)
        self.cpu_fraction = min(1.0, cpu / wall)
        sleepy = sleeps >= MIN_SLEEPS_PER_STEP * steps or not CAN_COUNT_SLEEPS
        self.waits = self.cpu_fraction < MAX_WAITING_CPU_FRACTION and sleepy
        if not self.waits:  # whatever time it had no CPU for, others had taken
            wall, self.cpu_fraction = min(wall, cpu), 1.0
        self.step_time = wall / steps


def _seconds_to_make(env_fn: Callable[[], Any]) -> float:
    """How long it takes to make an environment that is not the first, which may import things."""
    start = time.perf_counter()
    with DummyVecEnv([env_fn]):
        return time.perf_counter() - start


def _sleeps() -> int:
    """How often this thread has given up its CPU, or this process where only that is told."""
    if sys.platform == "win32":
        return 0
    who: int = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_nvcsw


def _estimates(probe: _Probe, num_envs: int) -> list[Candidate]:
    """Every candidate, with what is to be expected of it; the simpler ones first."""
    cpus = available_cpus()
    alone = probe.step_time * num_envs
    candidates = [Candidate("dummy", {}, num_envs / alone)]
    if num_envs == 1:
        return candidates
    if probe.waits:
        workers = min(num_envs, MAX_WORKERS, math.ceil(cpus / max(probe.cpu_fraction, 1e-3)))
        in_series = math.ceil(num_envs / workers)
        step = probe.step_time * in_series + WORKER_OVERHEAD
        candidates.append(Candidate("subproc", {"in_series": in_series}, num_envs / step))
    if cpus > 1:
        share = probe.step_time * math.ceil(num_envs / cpus)
        candidates.append(Candidate("subproc", {}, num_envs / (share + WORKER_OVERHEAD)))
        rate = num_envs / (share + WORKER_OVERHEAD / 2)
        candidates.append(Candidate("subproc", {"caller_steps": True}, rate))
    return candidates


@dataclass(frozen=True)
class _Plan:
    """What to measure.

    Attributes:
        candidates: those that could be the fastest.
        count: with how many environments.
        reason: why these.
    """

    candidates: Sequence[Candidate]
    count: int
    reason: str

    @classmethod
    def of(
        cls, estimates: Sequence[Candidate], probe: _Probe, num_envs: int, others: bool
    ) -> _Plan:
        """Decides it from what is to be expected of all."""
        if probe.waits and num_envs > 1:
            return cls.nothing(
                f"a step uses a CPU for only {probe.cpu_fraction:.0%} of its time: environments "
                "that wait want processes of their own"
            )
        if len(estimates) == 1 and not others:
            because = "there is nothing to share out" if num_envs == 1 else "there is one CPU"
            return cls.nothing(because)
        if num_envs * probe.step_time < MIN_PARALLEL_SECONDS and not others:
            return cls.nothing("stepping all of them here takes less time than waking a process")
        best = max(each.steps_per_second for each in estimates)
        likely = [each for each in estimates if each.steps_per_second > MIN_EXPECTED_RATIO * best]
        count = _affordable(likely, probe, num_envs)
        if not count:
            return cls.nothing(
                f"not measured, but estimated: an environment takes {probe.making_time:.1g} s to "
                "make"
            )
        reason = "the fastest as measured; of those within 10 % of it, the one to be expected"
        if count < num_envs:
            reason += f"; measured with {count} environments, since it takes long to make them"
        return cls(likely, count, reason)

    @classmethod
    def nothing(cls, reason: str) -> _Plan:
        """What to do where there is nothing to measure, or no time."""
        return cls((), 0, reason)


def _affordable(candidates: Sequence[Candidate], probe: _Probe, num_envs: int) -> int:
    """With how many environments there is time to measure the candidates; 0 for none."""
    cpus = available_cpus()
    # Workers make theirs at the same time.
    one_each = sum(1 if each.backend == "dummy" else 1 / cpus for each in candidates)
    count = math.floor(MAX_MAKING_SECONDS / max(probe.making_time * one_each, 1e-9))
    if count >= num_envs:
        return num_envs
    count -= count % cpus  # for even shares
    return count if count >= MIN_ENVS_PER_CPU * cpus else 0


def _measured(
    plan: _Plan,
    makers: Mapping[str, Callable[[], VecEnv]],
    env_fn: Callable[[], Any],
    progress: Callable[[str, float], None] | None,
) -> dict[str, Throughput]:
    """The figures of the plan's candidates, and of the other ones, by name."""
    with ExitStack() as stack:
        runners = {}

        def add(name: str, envs: VecEnv) -> None:
            stack.enter_context(envs)
            envs.reset(seed=0)
            actions = sample_actions(envs.action_space, envs.num_envs, steps=SAMPLED_STEPS)
            runners[name] = StepLoop(envs, envs.num_envs, actions)

        for each in plan.candidates:
            add(each.name, backend_class(each.backend)([env_fn] * plan.count, **each.options))
        for name, make in makers.items():
            add(name, make())
        return measure(runners, rounds=ROUNDS, seconds=ROUND_SECONDS, progress=progress)


def _scaled_to_all(
    plan: _Plan, figures: Mapping[str, Throughput], probe: _Probe, num_envs: int
) -> list[Candidate]:
    """The plan's candidates with their figures; more environments take their share longer."""
    cpus = available_cpus()
    more = math.ceil(num_envs / cpus) - math.ceil(plan.count / cpus)
    step_time = 1 / figures["dummy"].best if "dummy" in figures else probe.step_time
    candidates = []
    for each in plan.candidates:
        rate = figures[each.name].best
        if each.backend != "dummy":
            rate = num_envs / (plan.count / rate + more * step_time)
        candidates.append(Candidate(each.backend, each.options, rate, measured=True))
    return candidates
