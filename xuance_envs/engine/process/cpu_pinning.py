"""CPU pinning for processes that spin.

Two spinning processes work well on two CPUs and badly on one. The kernel may leave both on one
CPU for seconds, because neither sleeps. Power-saving schedulers even move them to one CPU.

If the main process steps a group itself, it has its own CPU. Otherwise it shares the CPU of the
first worker. It waits for this worker first, so it does not interrupt this worker's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from xuance_envs.engine.system.current import system

SAMPLE_STEPS = 16  # steps timed per sample
SAMPLE_INTERVAL = 256  # steps between two samples
NEVER = float("inf")

# Mean step time in seconds below which workers are pinned. Slower steps lose little to late
# wake-ups, but threads and programs that environments start would inherit the single CPU.
FAST_STEP_SECONDS = 1e-3


class CpuPinner:
    """Pinning of each worker to one CPU, in effect only while steps are fast."""

    def __init__(self, pids: Sequence[int], caller_steps: bool, cpus: int) -> None:
        self._pids = list(pids)
        self._caller_steps = caller_steps
        self._current_cpu = system.current_cpu_function()
        self._all_cpus = system.cpu_affinity() or set()
        self._affinities = [self._all_cpus] * len(pids)
        self._sample_start: float | None = None
        self._slow_samples = 0
        # With fewer processes than CPUs, some CPUs are free; with more, processes share one anyway.
        self.may_pin = len(pids) + caller_steps == cpus == len(self._all_cpus) and (
            self._current_cpu is not None or not caller_steps
        )
        self._steps_left: float = 1 if self.may_pin else NEVER  # until a sample is due

    def replace(self, index: int, pid: int) -> None:
        """Register the process of a restarted worker."""
        if self._pids:
            self._pids[index] = pid
            self._affinities[index] = self._all_cpus

    def step(self) -> None:
        """Count a step, and take a sample if one is due."""
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._sample()

    def _sample(self) -> None:
        """Start a sample, or end it and pin or unpin the workers."""
        now = perf_counter()
        if self._sample_start is None:
            self._sample_start = now
            self._steps_left = SAMPLE_STEPS
            return
        fast = now - self._sample_start < FAST_STEP_SECONDS * SAMPLE_STEPS
        self._sample_start = None
        self._steps_left = SAMPLE_INTERVAL
        # One slow sample may be a pause of the main process, so only the second one counts.
        self._slow_samples = 0 if fast else self._slow_samples + 1
        if self._slow_samples == 1:
            return
        affinities = [self._all_cpus] * len(self._pids)
        # Pin only while the program has not changed the main process's affinity itself.
        if fast and system.cpu_affinity() == self._all_cpus:
            first, *others = sorted(self._all_cpus)
            main = first if self._current_cpu is None else self._current_cpu()
            cpus = [main, *[first if cpu == main else cpu for cpu in others]]
            affinities = [{cpu} for cpu in cpus[self._caller_steps :]]
        if affinities == self._affinities:
            return
        try:
            if [system.cpu_affinity(pid) for pid in self._pids] != self._affinities:
                self._steps_left = NEVER  # other code has changed their affinity
                return
            for pid, affinity in zip(self._pids, affinities, strict=True):
                system.set_cpu_affinity(pid, affinity)
        except OSError:  # a worker has ended, or pinning is not permitted
            self._steps_left = NEVER
        self._affinities = affinities
