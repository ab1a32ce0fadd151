"""The contract suite, unchanged, over the actors of machines, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import MACHINES, Maker, made
from contract import contract
from pretended_cluster import pretended_machines

from tests.ray.test_contract import NOT_OURS

globals().update(contract(NOT_OURS))

pytestmark = pytest.mark.long  # starts two processes or more for each of some eight hundred tests


@pytest.fixture
def make() -> Iterator[Maker]:
    """Makes vector environments on two machines."""
    with pretended_machines(here=2, there=2):
        yield from made(MACHINES)


@pytest.fixture
def make_either(make: Maker) -> Maker:
    """The same: theirs all live elsewhere."""
    return make


@pytest.fixture
def make_local(make: Maker) -> Maker:
    """The same: they take the same argument."""
    return make


@pytest.fixture
def make_saving(make: Maker) -> Maker:
    """The same: their states are saved as others' are."""
    return make


@pytest.fixture
def make_on_all(make: Maker) -> Maker:
    """The same: they all start in one way."""
    return make
