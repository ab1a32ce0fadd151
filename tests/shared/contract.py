"""The contract suite, for test files that run it on more than ``tests/vector_envs`` does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import Maker

MODULES = sorted(Path(__file__).parents[1].glob("vector_envs/test_contract_*.py"))

OTHER_MAKERS = ("make_either", "make_local", "make_on_all", "make_saving")
"""Fixtures that some tests use instead of ``make``."""

NOT_RAYS = frozenset(
    {
        # The second argument differs there.
        "test_resets_env_seed_may_come_second_and_may_be_zero",
    }
)
"""Tests that do not run on :class:`~xuance_envs.vector_envs.ray_vec_env.RayVecEnv_Gym`."""


def contract(without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the tests of all contract modules under distinct names, and their helpers."""
    return {name: value for path in MODULES for name, value in _parts(path, without)}


def contract_of_one(without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the contract for one backend, with ``make`` in place of the other fixtures."""
    return contract(without) | {name: _as_make(name) for name in OTHER_MAKERS}


def _as_make(name: str) -> Any:
    @pytest.fixture(name=name)
    def maker(make: Maker) -> Maker:
        """Return the only factory."""
        return make

    return maker


def _parts(path: Path, without: frozenset[str]) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(f"tests.vector_envs.{path.stem}")
    for name, value in vars(module).items():
        if name.startswith("test_"):
            own_name = path.stem.replace("contract_", "") + name.removeprefix("test")
            if own_name not in without:
                yield own_name, value
        elif not name.startswith("_"):
            yield name, value


def leave_out_the_rest(config: pytest.Config, items: list[pytest.Item], path: Path) -> None:
    """Deselect contract tests that do not use the backend under test."""
    without = [
        item
        for item in items
        if item.path == path and "make" not in getattr(item, "fixturenames", ())
    ]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in set(without)]
