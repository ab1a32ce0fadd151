"""Which CPUs workers are kept on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from xuance_envs.engine import placement
from xuance_envs.engine.placement import EVERY, FIRST, Placement

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

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


def test_quick_workers_get_a_cpu_each_and_slow_ones_all(
    workers: list[int], two_cpus: list[int]
) -> None:
    place = Placement(workers, caller_steps=False, cpus=2)
    assert place.due == FIRST
    place.update(10**9)  # so many steps since it was made: quick
    assert places_of(workers) == [[cpu] for cpu in two_cpus]
    assert place.due == 10**9 + EVERY
    time.sleep(0.01)
    place.update(10**9 + 1)  # one step in 10 ms: slow
    assert places_of(workers) == [two_cpus] * 2
    assert sorted(os.sched_getaffinity(0)) == two_cpus


def test_a_worker_keeps_out_of_the_way_of_a_caller_that_steps(
    workers: list[int], two_cpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = two_cpus[0]
    monkeypatch.setattr(placement, "_current_cpu", lambda: lambda: where)
    place = Placement(workers[:1], caller_steps=True, cpus=2)
    place.update(10**9)
    assert places_of(workers[:1]) == [[two_cpus[1]]]
    where = two_cpus[1]
    place.update(2 * 10**9)
    assert places_of(workers[:1]) == [[two_cpus[0]]]


@pytest.mark.parametrize(
    ("count", "caller_steps", "cpus"), [(1, False, 2), (2, True, 2), (2, False, 1)]
)
def test_workers_are_left_alone_where_they_do_not_fit_the_cpus(
    workers: list[int], count: int, caller_steps: bool, cpus: int
) -> None:
    assert Placement(workers[:count], caller_steps, cpus).due == float("inf")


def test_a_worker_that_has_ended_is_no_error(workers: list[int]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = Placement([gone.pid, workers[0]], caller_steps=False, cpus=2)
    place.update(10**9)
    assert place.due == float("inf")
