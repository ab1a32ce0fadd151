"""The contract suite, unchanged, over Ray actors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import RAY, Maker, made, rows
from contract import NOT_RAYS, contract_of_one

globals().update(contract_of_one(NOT_RAYS))

pytestmark = pytest.mark.far("everywhere")


@pytest.fixture(params=rows([RAY]), ids=str)
def make(actors: None, request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes vector environments on Ray."""
    yield from made(request.param)
