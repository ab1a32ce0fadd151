"""Estimates of throughput from the steps of one environment, for :mod:`~xuance_envs.tuning`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xuance_envs.engine.cpus import gil_is_enabled
from xuance_envs.engine.system.current import system
from xuance_envs.measure import StepLoop, sample_actions
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.options import SPLIT_OPTIONS
from xuance_envs.vector_envs.thread_vec_env import MAX_AUTO_THREADS
from xuance_envs.vector_envs.worker_settings import WorkerSettings

PROBE_SECONDS = 0.08
"""Seconds for which one environment is stepped."""

SAMPLED_STEPS = 64
"""Number of steps for which actions are sampled; sampling can take longer than stepping."""

SLOW_MAKING_SECONDS = 2.0
"""A second environment is made, to exclude imports, if the first took less time than this."""

MAX_WAITING_CPU_FRACTION = 0.7
MIN_SLEEPS_PER_STEP = 0.5
"""Environments with less CPU use and more frequent sleeps than these count as waiting."""

MAX_WORKERS = 64
"""Maximum number of worker processes for waiting environments."""

WORKER_OVERHEAD = 60e-6
"""Estimated overhead of a step with worker processes, in seconds; half with ``caller_steps``."""

THREAD_OVERHEAD = 10e-6
"""Estimated overhead of a step with threads, in seconds."""

PROBE_OVERHEAD = 150e-6
"""Part of a step's CPU time, in seconds, that does not grow with the number of environments."""

NOT_IN_MAIN_PROCESS = frozenset(
    {
        *("caller_steps", "on_worker_failure", "max_restarts", "restart_on_exception"),
        *("step_timeout", "worker_threads", "record_failures"),
    }
)
"""With any of these options, no candidate with ``caller_steps`` is added."""


class Probe:
    """Step time, CPU usage and creation time of one environment."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        start = time.perf_counter()
        with DummyVecEnv([env_fn]) as envs:
            self.making_time = time.perf_counter() - start
            if self.making_time < SLOW_MAKING_SECONDS:
                self.making_time = seconds_to_make(env_fn)
            envs.reset(seed=0)
            loop = StepLoop(envs, 1, sample_actions(envs.action_space, 1, steps=SAMPLED_STEPS))
            loop.run(3)
            steps, wall, cpu, sleeps, batch = 0, 0.0, 0.0, 0, 1
            while wall < PROBE_SECONDS:
                began, slept = time.process_time(), system.count_sleeps()
                wall += loop.run(batch)
                cpu += time.process_time() - began
                sleeps += system.count_sleeps() - slept
                steps += batch
                batch = min(2 * batch, 256)
        self.cpu_fraction = min(1.0, cpu / wall)
        sleeps_often = sleeps >= MIN_SLEEPS_PER_STEP * steps or not system.CAN_COUNT_SLEEPS
        self.waits = self.cpu_fraction < MAX_WAITING_CPU_FRACTION and sleeps_often
        if not self.waits:  # other processes used the CPU for the rest of the wall time
            wall, self.cpu_fraction = min(wall, cpu), 1.0
        self.step_time = wall / steps


def seconds_to_make(env_fn: Callable[[], Any]) -> float:
    """Return the seconds for making one more environment, without imports."""
    start = time.perf_counter()
    with DummyVecEnv([env_fn]):
        return time.perf_counter() - start


def estimated_rates(
    probe: Probe, num_envs: int, cpus: int, options: Mapping[str, Any], backends: Sequence[str]
) -> list[tuple[str, Mapping[str, Any], float]]:
    """Return backend, options and estimated steps per second of candidates, the simplest first."""
    candidates = [("dummy", options, 1 / probe.step_time)] if "dummy" in backends else []
    if candidates and num_envs == 1:
        return candidates
    with_threads = "thread" in backends and (probe.waits or not gil_is_enabled())
    with_processes = "subproc" in backends
    shares: list[dict[str, Any]] = [{}]
    if (options.get("num_workers") or 1) < num_envs and NOT_IN_MAIN_PROCESS.isdisjoint(options):
        shares.append({"caller_steps": True})
    variants: list[tuple[str, dict[str, Any]]] = []
    if probe.waits and not any(name in options for name in SPLIT_OPTIONS):
        if with_threads:
            variants.append(("thread", {"in_series": math.ceil(num_envs / MAX_AUTO_THREADS)}))
        workers = min(num_envs, MAX_WORKERS, math.ceil(cpus / max(probe.cpu_fraction, 1e-3)))
        if with_processes:
            variants.append(("subproc", {"in_series": math.ceil(num_envs / workers)}))
    elif with_threads:
        variants += [("thread", each) for each in shares]
    if with_processes and (cpus > 1 or not (candidates or variants)):
        variants += [("subproc", each) for each in shares]
    # Under the GIL, threads share one CPU.
    serial = max(0.0, probe.step_time * probe.cpu_fraction - PROBE_OVERHEAD) * num_envs
    for backend, variant in variants:
        chosen = {**variant, **options}
        own_share = bool(chosen.get("caller_steps"))
        settings = WorkerSettings(**{n: chosen[n] for n in SPLIT_OPTIONS if n in chosen})
        largest = max(hi - lo for lo, hi in settings.split(num_envs, cpus, own_share))
        if not probe.waits:
            largest = max(largest, math.ceil(num_envs / cpus))
        overhead = WORKER_OVERHEAD if backend == "subproc" else THREAD_OVERHEAD
        step = probe.step_time * largest + overhead / (1 + own_share)
        if backend == "thread" and gil_is_enabled():
            step = max(step, serial)
        candidates.append((backend, chosen, num_envs / step))
    return candidates
