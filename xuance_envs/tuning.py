"""Autotuning: find out in about a second which backend is fastest for an environment.

Waking a worker costs 20 to 100 µs. Worker processes are faster than one process if stepping all
environments takes long compared with this time. Environments that wait, for a network or an
external simulator, need more processes than there are CPUs.

The step time is measured with one environment. Two figures show whether an environment computes or
waits: the fraction of the step time that it spends on the CPU, and how often it sleeps. On a busy
machine, environments that compute have a low fraction, too, but they do not sleep.

Threads are candidates only if the caller allows them, because environments in threads share global
state. They suit environments that wait and, in a free-threaded Python, environments that compute.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xuance_envs.engine.cpus import available_cpus
from xuance_envs.errors import EnvError, counted
from xuance_envs.measure import StepLoop, Throughput, measure, sample_actions
from xuance_envs.tuning_estimates import SAMPLED_STEPS, Probe, estimated_rates
from xuance_envs.vector_envs.arguments import checked_count
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.options import SPLIT_OPTIONS, BackendOptions, backends_with
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv
from xuance_envs.vector_envs.thread_vec_env import ThreadVecEnv
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["Autotuned", "Candidate", "autotune", "backend_class", "backend_for"]

logger = logging.getLogger("xuance_envs")

ROUNDS = 6
ROUND_SECONDS = 0.015
"""Timed runs of each candidate. The fastest counts: other load can only slow a run down."""

MAX_MAKING_SECONDS = 0.5
"""Maximum seconds for making the environments of all candidates."""

MIN_ENVS_PER_CPU = 2
"""Minimum number of environments per CPU in a measurement that does not use all environments."""

MIN_PARALLEL_SECONDS = 20e-6
"""If this process steps all environments in fewer seconds than this, workers would be slower."""

MIN_EXPECTED_RATIO = 0.5
"""Candidates with less than this fraction of the highest estimate are not measured."""

MEASUREMENT_TOLERANCE = 0.9
"""Among candidates with this fraction of the highest measured throughput, estimates decide."""

SIMPLER_CHOICE_TOLERANCE = 0.97
"""The simplest equally fast candidate within this fraction of the best estimate is chosen."""


def backend_class(name: str) -> Callable[..., VecEnv]:
    """Return the class of the backend ``"dummy"``, ``"thread"``, ``"subproc"`` or ``"ray"``."""
    local = {"dummy": DummyVecEnv, "thread": ThreadVecEnv, "subproc": SubprocVecEnv}
    if name in local:
        return local[name]
    from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym

    return RayVecEnv_Gym


@dataclass(frozen=True)
class Candidate:
    """A backend with options, and its throughput.

    Attributes:
        backend: name of the backend, as for :func:`~xuance_envs.making.make_vec`.
        options: arguments for the backend's class.
        steps_per_second: environment steps per second; NaN if neither measured nor estimated.
        measured: True if the throughput was measured, possibly with fewer environments; False if
            it was only estimated from one environment, or is NaN.
    """

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    steps_per_second: float = math.nan
    measured: bool = False

    @property
    def name(self) -> str:
        """Backend and options as text."""
        options = [k if value is True else f"{k}={value}" for k, value in self.options.items()]
        return ", ".join([self.backend, *options])


@dataclass(frozen=True)
class Autotuned:
    """The result of ``autotune``; ``str()`` formats it as a table.

    Attributes:
        num_envs: number of environments.
        step_time: seconds per step of one environment; NaN if not measured.
        cpu_fraction: fraction of ``step_time`` spent on the CPU; NaN if not measured.
        candidates (tuple[Candidate, ...]): all candidates.
        choice (Candidate): the chosen candidate.
        reason: reason for the choice.

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
        timed = f"{self.step_time * 1e6:,.1f} µs per step, {self.cpu_fraction:.0%} of it CPU time"
        if math.isnan(self.step_time):
            timed = "not timed"
        lines = [f"{counted(self.num_envs, 'environment')}, {timed}"]
        for each in self.candidates:
            how = "" if each.measured else " (estimated)"
            rate = f"{each.steps_per_second:>12,.0f} steps/s{how}"
            if math.isnan(each.steps_per_second):
                rate = "not timed"
            mark = " <- chosen" if each.name == self.choice.name else ""
            lines.append(f"{each.name:<{width}}  {rate}{mark}")
        return "\n".join([*lines, self.reason])


def autotune(
    env_fn: Callable[[], Any],
    num_envs: int,
    *,
    options: BackendOptions | None = None,
    allow_threads: bool = False,
    others: Mapping[str, Callable[[], VecEnv]] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Autotuned:
    """Find the fastest backend for copies of an environment.

    The function closes the environments that it creates.

    Args:
        env_fn: makes one environment.
        num_envs: number of environments to choose a backend for.
        options: options that the backend must support, such as
            ``{"on_worker_failure": "restart"}``. Every candidate uses them.
        allow_threads: True to consider
            :class:`~xuance_envs.vector_envs.thread_vec_env.ThreadVecEnv` if the environments wait,
            or if the global interpreter lock (GIL) is off. Environments in threads share the
            working directory, global random generators and other global state.
        others: factories of further candidates, by backend name.
        progress: called with a candidate's name and its environment steps per second after each
            measurement; the first name is ``"one environment"``.

    Returns:
        The candidates with their throughput, and the choice.

    Raises:
        ValueError: ``num_envs`` is below 1, or no backend has all ``options``.
        TypeError: an option is unknown.
        EnvError: an environment failed.

    Example:
        >>> import gymnasium
        >>> from xuance_envs import autotune
        >>> tuned = autotune(lambda: gymnasium.make("CartPole-v1"), 1)
        >>> tuned.choice.backend
        'dummy'
    """
    num_envs = checked_count("num_envs", num_envs)
    given: dict[str, Any] = {**(options or {})}
    backends = backends_with(given, allow_threads)
    if backends == ["ray"]:
        return _unmeasured(num_envs, Candidate("ray", given), _only_candidate("ray", given))
    probe = Probe(env_fn)
    if progress is not None:
        progress("one environment", 1 / probe.step_time)
    others = others or {}
    rates = estimated_rates(probe, num_envs, available_cpus(), given, backends)
    estimates = [Candidate(*each) for each in rates]
    likely, count, reason = _planned(estimates, probe, num_envs, bool(others))
    makers: dict[str, Callable[[], VecEnv]] = {
        each.name: partial(backend_class(each.backend), [env_fn] * count, **each.options)
        for each in likely
    }
    figures = {name: each.best for name, each in _measured({**makers, **others}, progress).items()}
    measured = _scaled_to_all(likely, count, figures, probe, num_envs)
    further = [Candidate(name, {}, figures[name], True) for name in others]
    candidates = tuple({each.name: each for each in (*estimates, *measured, *further)}.values())
    # Do not compare measurements with estimates: on a busy machine, measurements are lower.
    comparable = [each for each in candidates if each.measured or not likely]
    choice = _chosen(comparable, {each.name: each.steps_per_second for each in estimates})
    times = probe.step_time, probe.cpu_fraction
    tuned = Autotuned(num_envs, *times, candidates, choice, reason)
    logger.info("autotuned:\n%s", tuned)
    return tuned


def backend_for(
    env_fn: Callable[[], Any],
    num_envs: int,
    *,
    options: BackendOptions | None = None,
    allow_threads: bool = False,
    others: Mapping[str, Callable[[], VecEnv]] | None = None,
) -> Autotuned:
    """Find the fastest backend, as :func:`autotune` does, even if environments reject an action.

    Sampled actions ignore action masks. If a step fails, the choice is made without a measurement.
    """
    try:
        return autotune(
            env_fn, num_envs, options=options, allow_threads=allow_threads, others=others
        )
    except EnvError as error:
        if error.command != "step":
            raise
        given: dict[str, Any] = {**(options or {})}
        backends = backends_with(given, allow_threads)
        parallel = num_envs > 1 and available_cpus() > 1 and "subproc" in backends
        choice = Candidate("subproc" if parallel else backends[0], given)
        reason = f"not measured: a step with a sampled action failed: {error.reason}"
        return _unmeasured(num_envs, choice, reason, logging.WARNING)


def _unmeasured(
    num_envs: int, choice: Candidate, reason: str, level: int = logging.INFO
) -> Autotuned:
    tuned = Autotuned(num_envs, math.nan, math.nan, (choice,), choice, reason)
    logger.log(level, "autotuned:\n%s", tuned)
    return tuned


def _only_candidate(backend: str, options: Iterable[str]) -> str:
    return f"{backend!r} is the only candidate that supports {' and '.join(options)}"


def _chosen(candidates: Sequence[Candidate], expected: Mapping[str, float]) -> Candidate:
    """Return the fastest candidate; among similar measurements, decide by the estimates."""
    close = MEASUREMENT_TOLERANCE * max(each.steps_per_second for each in candidates)
    best = [each for each in candidates if each.steps_per_second >= close]
    nearly = SIMPLER_CHOICE_TOLERANCE * max(expected.get(each.name, 0.0) for each in best)
    return next(each for each in best if expected.get(each.name, 0.0) >= nearly)


def _planned(
    estimates: Sequence[Candidate], probe: Probe, num_envs: int, others: bool
) -> tuple[Sequence[Candidate], int, str]:
    """Return candidates to measure, the number of their environments, and the choice's reason."""
    if probe.waits and num_envs > 1:
        reason = (
            f"a step spends only {probe.cpu_fraction:.0%} of its time on the CPU: environments "
            "that wait need their own processes or threads"
        )
    elif len(estimates) == 1 and not others:
        reason = f"only one {'environment' if num_envs == 1 else 'CPU'}"
        if estimates[0].backend == "subproc":
            reason = _only_candidate("subproc", estimates[0].options)
    elif num_envs * probe.step_time < MIN_PARALLEL_SECONDS and not others:
        reason = "stepping all environments takes less time than waking a worker"
    else:
        best = max(each.steps_per_second for each in estimates)
        likely = [each for each in estimates if each.steps_per_second > MIN_EXPECTED_RATIO * best]
        if count := _affordable(likely, probe, num_envs):
            reason = "the best estimate among candidates within 10 % of the highest measured speed"
            if count < num_envs:
                many = counted(count, "environment")
                reason += f"; measured with {many}, because making one is slow"
            return likely, count, reason
        reason = f"estimated, not measured: making an environment takes {probe.making_time:.1g} s"
    return (), 0, reason


def _affordable(candidates: Sequence[Candidate], probe: Probe, num_envs: int) -> int:
    """Return how many environments per candidate can be made in time; 0 if too few."""
    cpus = available_cpus()
    # Workers make their environments in parallel.
    one_each = sum(1 if each.backend == "dummy" else 1 / cpus for each in candidates)
    count = math.floor(MAX_MAKING_SECONDS / max(probe.making_time * one_each, 1e-9))
    if count >= num_envs:
        return num_envs
    if any(name in candidates[0].options for name in SPLIT_OPTIONS):
        return 0  # such options may be invalid for fewer environments
    count -= count % cpus  # equal shares for all CPUs
    return count if count >= MIN_ENVS_PER_CPU * cpus else 0


def _measured(
    makers: Mapping[str, Callable[[], VecEnv]], progress: Callable[[str, float], None] | None
) -> dict[str, Throughput]:
    with ExitStack() as stack:
        runners = {}
        for name, make in makers.items():
            envs = stack.enter_context(make())
            envs.reset(seed=0)
            actions = sample_actions(envs.action_space, envs.num_envs, steps=SAMPLED_STEPS)
            runners[name] = StepLoop(envs, envs.num_envs, actions)
        return measure(runners, rounds=ROUNDS, seconds=ROUND_SECONDS, progress=progress)


def _scaled_to_all(
    candidates: Sequence[Candidate],
    count: int,
    rates: Mapping[str, float],
    probe: Probe,
    num_envs: int,
) -> Iterator[Candidate]:
    """Yield candidates with their throughput extrapolated from ``count`` to all environments."""
    cpus = available_cpus()
    more = math.ceil(num_envs / cpus) - math.ceil(count / cpus)
    dummies = [rates[each.name] for each in candidates if each.backend == "dummy"]
    step_time = 1 / dummies[0] if dummies else probe.step_time
    for each in candidates:
        rate = rates[each.name]
        if each.backend != "dummy":
            rate = num_envs / (count / rate + more * step_time)
        yield dataclasses.replace(each, steps_per_second=rate, measured=True)
