"""The contract suite, unchanged, over the actors of machines, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import MACHINES, Maker, made
from contract import NOT_RAYS, contract_of_one
from fake_cluster import pretended_machines

globals().update(contract_of_one(NOT_RAYS))

pytestmark = pytest.mark.long  # starts two processes or more for each of some eight hundred tests


@pytest.fixture
def make() -> Iterator[Maker]:
    """Makes vector environments on two machines."""
    with pretended_machines(here=2, there=2):
        yield from made(MACHINES)
