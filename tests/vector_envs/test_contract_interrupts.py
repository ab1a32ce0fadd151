"""The contract where Ctrl-C comes within a step, at every instant at which it can."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from backends import BACKENDS
from interrupted_steps import ACTIONS, ENV_FNS, FOLDERS, Interrupted, assert_nothing_is_lost
from interrupts import Alarm, timer_latency

in_halves = pytest.mark.parametrize("halves", [False, True], ids=["whole", "in halves"])


@pytest.mark.everywhere
@in_halves
def test_an_interrupt_within_a_step_loses_nothing_and_repeats_nothing(make, halves):
    """Where it comes while an environment is in its own step or reset, that one may do it again."""
    numbers = itertools.count(int(halves), 9 if make.backend.here else 41)
    envs = lambda: Interrupted(make(ENV_FNS), halves=halves)  # noqa: E731  # called for each failure
    assert assert_nothing_is_lost(envs, numbers) >= 30


@pytest.mark.long
@in_halves
def test_an_interrupt_at_any_instant_of_a_step_loses_nothing_and_repeats_nothing(make, halves):
    """Within a transform and on Ray, at every fifth instant."""
    envs = lambda: Interrupted(make(ENV_FNS), halves=halves)  # noqa: E731  # as above
    every = 1 if make.backend in BACKENDS else 5
    assert assert_nothing_is_lost(envs, itertools.count(0, every)) * every >= 500


def interrupt_by_signals(make, interrupts):
    """Interrupts so many steps with real signals; one environment of each may be stepped again."""
    rng = np.random.default_rng(3)
    envs = make(ENV_FNS)
    envs.reset()
    before = np.zeros(len(ENV_FNS), int)
    longest, placed = 50e-6, 0
    for _ in range(40 * interrupts):
        if placed == interrupts:
            return
        with Alarm(rng.uniform(0, longest), FOLDERS) as alarm:
            envs.step(ACTIONS)
        if not alarm.came:
            longest = max(longest * 0.9, 5e-6)
            before += 1
            continue
        longest *= 1.1
        placed += 1
        if envs.waiting:
            envs.step_wait()
        steps = np.array(envs.call("counts"))[:, 0]
        more = np.sort(steps - before)
        assert more[-1] == 0 or (more[:-1] == 1).all(), f"{more} steps, after {before}"
        assert more[-1] <= 2, f"{more} steps, after {before}"
        before = steps
    pytest.skip(
        f"only {placed} of {interrupts} signals could be placed within a step: timers of this "
        f"machine fire about {timer_latency() * 1e6:.0f} us late, and not by the same each time"
    )


@pytest.mark.everywhere
def test_a_signal_within_a_step_repeats_nothing(make):
    interrupt_by_signals(make, 50)


@pytest.mark.long
def test_thousands_of_signals_within_a_step_repeat_nothing(make):
    interrupt_by_signals(make, 1_000)
