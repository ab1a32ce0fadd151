"""The contract suite, for files that run it over what ``tests/vector_envs`` does not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODULES = sorted(Path(__file__).parents[1].glob("vector_envs/test_contract_*.py"))


def contract(without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The tests of all its modules, by names of their own, and whatever else these have.

    Args:
        without: the names of tests that are left out.
    """
    return {name: value for path in MODULES for name, value in _parts(path, without)}


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
    """Leaves out what the contract's modules test without the backend they are run over.

    Args:
        config: as pytest's hook has it.
        items: likewise; changed.
        path: of the file with the contract's tests.
    """
    without = [
        item
        for item in items
        if item.path == path and "make" not in getattr(item, "fixturenames", ())
    ]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in set(without)]
