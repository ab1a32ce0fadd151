"""Which CPUs workers are kept on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from xuance_envs.engine.process import cpu_pinning
from xuance_envs.engine.process.cpu_pinning import SAMPLE_INTERVAL, SAMPLE_STEPS, CpuPinner
from xuance_envs.engine.system.current import system

CPUS = sorted(system.cpu_affinity() or ())

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs and sched_setaffinity")


@pytest.fixture
def two_cpus() -> Iterator[list[int]]:
    """Makes this process and its children one with two CPUs."""
    os.sched_setaffinity(0, CPUS[:2])
    yield CPUS[:2]
    os.sched_setaffinity(0, CPUS)


@pytest.fixture
def workers(two_cpus: list[int]) -> Iterator[list[int]]:
    processes = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in "ab"
    ]
    yield [process.pid for process in processes]
    for process in processes:
        process.communicate()


def places_of(pids: list[int]) -> list[list[int]]:
    return [sorted(os.sched_getaffinity(pid)) for pid in pids]


class Clock:
    """Time as a test wants it, and looks at how quick steps are."""

    def __init__(self) -> None:
        self.now = 0.0

    def look(self, place: CpuPinner, seconds_per_step: float) -> None:
        """Steps until a look has ended: the first one begins at once."""
        steps = SAMPLE_STEPS + (SAMPLE_INTERVAL if self.now else 1)
        for _ in range(steps):
            place.step()
            self.now += seconds_per_step


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cpu_pinning, "perf_counter", lambda: clock.now)
    return clock


def test_quick_workers_get_a_cpu_each_and_slow_ones_all(
    workers: list[int], two_cpus: list[int], clock: Clock
) -> None:
    place = CpuPinner(workers, caller_steps=False, cpus=2)
    clock.look(place, 1e-4)
    assert sorted(places_of(workers)) == [[cpu] for cpu in two_cpus]
    clock.look(place, 1e-2)
    assert sorted(places_of(workers)) == [[cpu] for cpu in two_cpus]  # it may have been a pause
    clock.look(place, 1e-2)
    assert places_of(workers) == [two_cpus] * 2
    assert sorted(os.sched_getaffinity(0)) == two_cpus


def test_a_worker_keeps_out_of_the_way_of_a_caller_that_steps(
    workers: list[int], two_cpus: list[int], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = two_cpus[0]
    monkeypatch.setattr(system, "current_cpu_function", lambda: lambda: where)
    place = CpuPinner(workers[:1], caller_steps=True, cpus=2)
    clock.look(place, 1e-4)
    assert places_of(workers[:1]) == [[two_cpus[1]]]
    where = two_cpus[1]
    clock.look(place, 1e-4)
    assert places_of(workers[:1]) == [[two_cpus[0]]]


def test_the_first_worker_shares_the_cpu_of_a_caller_that_waits(
    workers: list[int], two_cpus: list[int], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "current_cpu_function", lambda: lambda: where)
    place = CpuPinner(workers, caller_steps=False, cpus=2)
    for where in reversed(two_cpus):
        clock.look(place, 1e-4)
        assert places_of(workers[:1]) == [[where]]
        assert sorted(places_of(workers)) == [[cpu] for cpu in two_cpus]


@pytest.mark.parametrize("caller_steps", [False, True])
def test_without_the_current_cpu_only_a_caller_that_waits_pins(
    workers: list[int],
    two_cpus: list[int],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caller_steps: bool,
) -> None:
    monkeypatch.setattr(system, "current_cpu_function", lambda: None)
    clock.look(CpuPinner(workers[: 2 - caller_steps], caller_steps, cpus=2), 1e-4)
    pinned = [[cpu] for cpu in two_cpus]
    assert places_of(workers) == ([two_cpus] * 2 if caller_steps else pinned)


def test_what_environments_bound_themselves_is_left_as_it_is(
    workers: list[int], two_cpus: list[int], clock: Clock
) -> None:
    place = CpuPinner(workers, caller_steps=False, cpus=2)
    os.sched_setaffinity(workers[0], two_cpus[1:])
    clock.look(place, 1e-2)
    clock.look(place, 1e-2)
    assert places_of(workers) == [two_cpus[1:], two_cpus]
    clock.look(place, 1e-4)
    assert places_of(workers) == [two_cpus[1:], two_cpus]


def test_workers_do_not_follow_a_caller_that_binds_itself(
    workers: list[int], two_cpus: list[int], clock: Clock
) -> None:
    place = CpuPinner(workers, caller_steps=False, cpus=2)
    clock.look(place, 1e-4)
    os.sched_setaffinity(0, two_cpus[:1])
    clock.look(place, 1e-4)
    assert places_of(workers) == [two_cpus] * 2


@pytest.mark.parametrize(
    ("count", "caller_steps", "cpus"), [(1, False, 2), (2, True, 2), (2, False, 1)]
)
def test_workers_are_left_alone_where_they_do_not_fit_the_cpus(
    workers: list[int],
    two_cpus: list[int],
    clock: Clock,
    count: int,
    caller_steps: bool,
    cpus: int,
) -> None:
    clock.look(CpuPinner(workers[:count], caller_steps, cpus), 1e-4)
    assert places_of(workers) == [two_cpus] * 2


def test_a_worker_that_has_ended_is_no_error(
    workers: list[int], two_cpus: list[int], clock: Clock
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = CpuPinner([gone.pid, workers[0]], caller_steps=False, cpus=2)
    for _ in range(3):
        clock.look(place, 1e-4)
    assert places_of(workers) == [two_cpus] * 2
