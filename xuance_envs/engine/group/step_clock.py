"""How long the steps of a group take, in memory that another process may read at any time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["NEWS_BYTES", "TIMES_BYTES", "StepClock", "StepTimes", "news_in", "take_news"]

WINDOW = 1024
"""How many of the last steps the percentiles are of."""

EACH = 64
"""Of so many steps, the environments of one are timed one by one."""

_STEPS, _BUSY, _FIRST, _LAST, _SLOWEST, _SLOWEST_TIME, _RING = range(7)

TIMES_BYTES = 8 * (_RING + WINDOW)
"""Bytes of memory the times take."""


NEWS_BYTES = 8 * (_RING + 1)
"""Bytes of what one step changes in them."""


@dataclass(frozen=True)
class StepTimes:
    """How long the steps of a group took.

    Attributes:
        steps: how many there were.
        busy_fraction: share of the time between the first step's begin and the last one's end
            that was spent in steps; NaN before the first.
        p50: median time of a step, in seconds, of the last 1024; NaN before the first.
        p99: 99th percentile, likewise.
        slowest: place in the group of the environment that takes longest; None before the first.
        slowest_time: mean time of that environment's step, in seconds, resets included.
    """

    steps: int
    busy_fraction: float
    p50: float
    p99: float
    slowest: int | None
    slowest_time: float

    @classmethod
    def read(cls, memory: Any) -> StepTimes:
        """Reads them from the memory of a :class:`StepClock`, which may be at work."""
        cells = np.frombuffer(memory, np.float64, _RING + WINDOW).copy()
        steps = int(cells[_STEPS])
        if not steps:
            return cls(0, np.nan, np.nan, np.nan, None, np.nan)
        span = cells[_LAST] - cells[_FIRST]
        p50, p99 = np.percentile(cells[_RING : _RING + min(steps, WINDOW)], [50, 99])
        return cls(
            steps,
            float(min(1.0, cells[_BUSY] / span)) if span > 0 else 1.0,
            float(p50),
            float(p99),
            int(cells[_SLOWEST]),
            float(cells[_SLOWEST_TIME]),
        )


def news_in(memory: bytes) -> bytes:
    """The news of a clock by its memory, as :meth:`StepClock.news` has them."""
    steps = int(np.frombuffer(memory, np.float64, 1)[0])
    place = 8 * (_RING + (steps - 1) % WINDOW)
    return memory[: 8 * _RING] + memory[place : place + 8]


def take_news(memory: bytearray, news: bytes) -> None:
    """Brings a copy of a clock's memory up to date, if it has had all the news before.

    Args:
        memory: :data:`TIMES_BYTES` of it.
        news: :data:`NEWS_BYTES` from :meth:`StepClock.news`.
    """
    memory[: 8 * _RING] = news[: 8 * _RING]
    steps = int(np.frombuffer(news, np.float64, 1)[0])
    if steps:
        place = 8 * (_RING + (steps - 1) % WINDOW)
        memory[place : place + 8] = news[8 * _RING :]


class StepClock:
    """Times the steps of a group.

    Args:
        n: number of environments.
        memory: :data:`TIMES_BYTES` zeros that are written to; None for memory of its own.

    Attributes:
        times_each (bool): whether the environments of the next step are to be timed one by one.
    """

    def __init__(self, n: int, memory: Any = None) -> None:
        self.memory = bytearray(TIMES_BYTES) if memory is None else memory
        self.times_each = True
        self._cells = memoryview(self.memory).cast("B").cast("d")
        self._steps = 0
        self._busy = 0.0
        self._times = np.zeros(n)
        self._timed = 0

    def stop(self, start: float) -> None:
        """Takes note of a step that began at ``start``, as :func:`time.perf_counter` counts."""
        end = perf_counter()
        duration = end - start
        cells, steps = self._cells, self._steps
        if not steps:
            cells[_FIRST] = start
        self._busy += duration
        self._steps = steps + 1
        self.times_each = not self._steps % EACH
        cells[_RING + steps % WINDOW] = duration
        cells[_BUSY] = self._busy
        cells[_LAST] = end
        cells[_STEPS] = self._steps

    def news(self) -> bytes:
        """What the last step changed in the memory, for a copy of it: see :func:`take_news`."""
        last = self._steps - 1
        place = _RING + last % WINDOW
        return bytes(self._cells[:_RING]) + bytes(self._cells[place : place + 1])

    def timed(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same items; the time until the next one is asked for is that environment's."""
        start = perf_counter()
        for item in items:
            yield item
            now = perf_counter()
            self._times[item[0]] += now - start
            start = now
        self._timed += 1
        slowest = int(self._times.argmax())
        self._cells[_SLOWEST] = slowest
        self._cells[_SLOWEST_TIME] = self._times[slowest] / self._timed
