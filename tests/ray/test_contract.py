"""The contract suite, unchanged, over Ray actors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import RAY, Maker, made
from contract import NOT_RAYS, contract_of_one

globals().update(contract_of_one(NOT_RAYS))


@pytest.fixture
def make(actors: None) -> Iterator[Maker]:
    """Makes vector environments on Ray."""
    yield from made(RAY)
