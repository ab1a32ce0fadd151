"""The contract suite, unchanged, over Ray actors.

What it does not run is in :data:`NOT_OURS`; everything else that takes a maker of vector
environments is here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends import RAY, Maker, made
from contract import contract

NOT_OURS = frozenset(
    {
        # The second argument is another one here.
        "test_resets_env_seed_may_come_second_and_may_be_zero",
    }
)

globals().update(contract(NOT_OURS))


@pytest.fixture
def make(actors: None) -> Iterator[Maker]:
    """Makes vector environments on Ray."""
    yield from made(RAY)


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
