"""One Ray for all tests of a module."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import leave_out_the_rest
from ray_actors import lent_actors, lent_collectors, local_ray

HERE = Path(__file__).parent
CONTRACT = {HERE / "test_contract.py", HERE / "test_contract_machines.py"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not run over Ray, and has these tests run last.

    For Ray leaves threads and handlers of signals behind, which a forked process would inherit. The
    file that takes longest begins, so that files run side by side end together: a slow test takes
    as long as thirty others.
    """
    weight: Counter[Path] = Counter()
    for item in items:
        weight[item.path] += 30 if item.get_closest_marker("slow") else 1
    order = {path: -count if HERE in path.parents else -math.inf for path, count in weight.items()}
    items.sort(key=lambda item: order[item.path])
    for path in CONTRACT:
        leave_out_the_rest(config, items, path)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    """Ray on this machine; the actors of these tests take next to nothing of its CPUs."""
    pytest.importorskip("ray")
    with local_ray() as ray:
        yield ray


@pytest.fixture(scope="module")
def actors(ray_here: Any) -> Iterator[None]:
    """Actors that are lent to one test of a module after the other."""
    with lent_actors():
        yield


@pytest.fixture(scope="class")
def actors_of_the_class(ray_here: Any) -> Iterator[None]:
    """Actors that are lent to one test of a class after the other."""
    with lent_actors():
        yield


@pytest.fixture(scope="module")
def collectors() -> Iterator[None]:
    """Ray on this machine, and collectors that are lent to one test of a module after the other."""
    pytest.importorskip("ray")
    with local_ray(num_cpus=32), lent_collectors():
        yield
