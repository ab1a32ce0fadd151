"""One Ray cluster for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import leave_out_the_rest
from leftovers import wait_until
from ray_actors import CPUS, add_node, free, lent_actors, local_cluster

HERE = Path(__file__).parent
CONTRACT = {HERE / "test_contract.py", HERE / "test_contract_machines.py"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not run over Ray, and has these tests run last.

    For Ray leaves threads and handlers of signals behind, which a forked process would inherit.
    """
    items.sort(key=lambda item: HERE in item.path.parents)
    for path in CONTRACT:
        leave_out_the_rest(config, items, path)


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Any]:
    """One cluster for all tests of this process, which is on its first node."""
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(one_cluster: Any) -> Iterator[Any]:
    """The cluster with one node, and whatever tests of a module add to it."""
    wait_until_free(nodes=1)
    yield one_cluster
    for node in [*one_cluster.worker_nodes]:
        one_cluster.remove_node(node)


@pytest.fixture
def second_node(cluster: Any) -> Any:
    """A second node, which replaces a lost one; all CPUs are free."""
    if not cluster.worker_nodes:
        add_node(cluster)
    wait_until_free(nodes=2)
    return next(iter(cluster.worker_nodes))


def wait_until_free(nodes: int) -> None:
    """Wait until Ray has noticed that other nodes and all actors are gone."""
    import ray

    assert wait_until(
        lambda: sum(node["Alive"] for node in ray.nodes()) == nodes and free("CPU") == nodes * CPUS,
        seconds=60,
    ), (ray.nodes(), ray.available_resources())


@pytest.fixture(scope="module")
def actors(cluster: Any) -> Iterator[None]:
    """Actors that are lent to one test of a module after the other."""
    with lent_actors():
        yield


@pytest.fixture(scope="class")
def actors_of_the_class(cluster: Any) -> Iterator[None]:
    """Actors that are lent to one test of a class after the other."""
    with lent_actors():
        yield
