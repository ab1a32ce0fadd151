"""Progress and step times of a group, in memory that another process may read at any time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from time import perf_counter
from typing import Any

import numpy as np

NO_ACTIVE_ENV = 0  # value of the slot while no environment runs; 1 is the group's first environment
WINDOW = 1024  # number of last steps that the percentiles cover
PROFILE_INTERVAL = 64  # interval, in steps, at which the clock times each environment

_STEPS, _BUSY, _FIRST, _LAST, _SLOWEST, _SLOWEST_TIME, _RING = range(7)

TIMES_BYTES = 8 * (_RING + WINDOW)

_put_first_cells = Struct("4d").pack_into  # faster than an assignment to each of the cells

TIMING_DELTA_BYTES = 8 * (_RING + 1)


@dataclass(frozen=True)
class ProgressRecord:
    # ``at[0]`` is the running environment's place + 1, or NO_ACTIVE_ENV.
    at: list[int] | memoryview = field(default_factory=lambda: [NO_ACTIVE_ENV])
    times: memoryview | None = None


@dataclass(frozen=True)
class StepTimes:
    """Step time statistics of a group, in seconds."""

    steps: int
    busy_fraction: float
    p50: float
    p99: float
    slowest: int | None
    slowest_time: float

    @classmethod
    def read(cls, memory: Any) -> StepTimes:
        cells = np.frombuffer(memory, np.float64, _RING + WINDOW).tolist()
        steps = int(cells[_STEPS])
        if not steps:
            return cls(0, np.nan, np.nan, np.nan, None, np.nan)
        span = cells[_LAST] - cells[_FIRST]
        busy_fraction = min(1.0, cells[_BUSY] / span) if span > 0 else 1.0
        p50, p99 = np.percentile(cells[_RING : _RING + min(steps, WINDOW)], [50, 99]).tolist()
        return cls(steps, busy_fraction, p50, p99, int(cells[_SLOWEST]), cells[_SLOWEST_TIME])


def timing_delta(memory: Any) -> bytes:
    """Return the last step's changes to a clock's memory, for :func:`apply_timing_delta`."""
    steps = int(np.frombuffer(memory, np.float64, 1)[0])
    place = 8 * (_RING + (steps - 1) % WINDOW)
    return bytes(memory[: 8 * _RING]) + bytes(memory[place : place + 8])


def apply_timing_delta(memory: bytearray, timing_delta: bytes) -> None:
    """Apply a delta to a copy of a clock's memory, after all earlier deltas."""
    memory[: 8 * _RING] = timing_delta[: 8 * _RING]
    steps = int(np.frombuffer(timing_delta, np.float64, 1)[0])
    if steps:
        place = 8 * (_RING + (steps - 1) % WINDOW)
        memory[place : place + 8] = timing_delta[8 * _RING :]


class StepClock:
    def __init__(self, n: int, memory: Any = None) -> None:
        self.memory = bytearray(TIMES_BYTES) if memory is None else memory
        self.profiles_next_step = True
        self._cells = memoryview(self.memory).cast("B").cast("d")
        self._steps = 0
        self._busy = 0.0
        self._first = 0.0
        self._times = np.zeros(n)
        self._profiled_steps = 0

    def stop(self, start: float) -> None:
        """Record a step that began at ``start``, in :func:`time.perf_counter` seconds."""
        end = perf_counter()
        duration = end - start
        steps = self._steps
        if not steps:
            self._first = start
        self._busy += duration
        self._steps = steps + 1
        self.profiles_next_step = not self._steps % PROFILE_INTERVAL
        self._cells[_RING + steps % WINDOW] = duration
        _put_first_cells(self.memory, 0, self._steps, self._busy, self._first, end)

    def time_each_env(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the same items; for each, measure the time until the loop requests the next one."""
        start = perf_counter()
        for item in items:
            yield item
            now = perf_counter()
            self._times[item[0]] += self._duration(item[0], now - start)
            start = now
        self._profiled_steps += 1
        slowest = int(self._times.argmax())
        self._cells[_SLOWEST] = slowest
        self._cells[_SLOWEST_TIME] = self._times[slowest] / self._profiled_steps

    def _duration(self, place: int, elapsed: float) -> float:
        """Return the step time of one environment, given the time that the group spent on it."""
        return elapsed
