"""The contract suite, unchanged, over Ray actors.

Left out are the tests with long tables of values, which take ``make_either``: the values travel as
they do to worker processes, pickled by the same code or as the bytes of the same arrays, and each
of them would be three calls through Ray.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import RAY, Maker, made
from ray_actors import lent_actors

CONTRACT = sorted(Path(__file__).parents[1].glob("vector_envs/test_contract_*.py"))


def contract_over_any_backend() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The tests over every backend, by names of their own."""
    for path in CONTRACT:
        module = importlib.import_module(f"tests.vector_envs.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_") and {"make", "make_on_all"} & set(
                inspect.signature(test).parameters
            ):
                yield f"{path.stem}_{name.removeprefix('test_')}", test


globals().update(contract_over_any_backend())


@pytest.fixture(scope="module")
def actors(ray_here: Any) -> Iterator[None]:
    """Actors that are lent to one test after the other."""
    with lent_actors():
        yield


@pytest.fixture
def make(actors: None) -> Iterator[Maker]:
    """Makes vector environments on Ray."""
    yield from made(RAY)


@pytest.fixture
def make_on_all(make: Maker) -> Maker:
    """The same: one way of starting is all there is."""
    return make


def test_the_contract_is_all_here() -> None:
    assert len(CONTRACT) == 12
    assert len(dict(contract_over_any_backend())) > 150
