"""The contract suite, unchanged, over Ray actors.

What it does not run is in :data:`NOT_OURS`; everything else that takes a maker of vector
environments is here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import RAY, Maker, made

CONTRACT = sorted(Path(__file__).parents[1].glob("vector_envs/test_contract_*.py"))
NOT_OURS = {
    # The second argument is another one here.
    "test_resets_env_seed_may_come_second_and_may_be_zero",
}


def parts_of(path: Path) -> Iterator[tuple[str, Any]]:
    """A module's fixtures, with whatever else it has, and its tests by names of their own."""
    module = importlib.import_module(f"tests.vector_envs.{path.stem}")
    for name, value in vars(module).items():
        if name.startswith("test_"):
            own_name = path.stem.replace("contract_", "") + name.removeprefix("test")
            if own_name not in NOT_OURS:
                yield own_name, value
        elif not name.startswith("_"):
            yield name, value


for path in CONTRACT:
    globals().update(parts_of(path))


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
def make_on_all(make: Maker) -> Maker:
    """The same: they all start in one way."""
    return make
