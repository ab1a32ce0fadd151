"""Test that the migration page lists every name that the drop-in replacements lack."""

from __future__ import annotations

import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"

SB3 = "stable_baselines3.common.vec_env"
CLASSES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "SyncVectorEnv": ("Gymnasium", "gymnasium.vector", "gymnasium", {}),
    "AsyncVectorEnv": ("Gymnasium", "gymnasium.vector", "gymnasium", {"context": "forkserver"}),
    "DummyVecEnv": ("Stable-Baselines3", SB3, "sb3", {}),
    "SubprocVecEnv": ("Stable-Baselines3", SB3, "sb3", {"start_method": "forkserver"}),
}
classes = pytest.mark.parametrize("name", CLASSES)


def both(name: str) -> tuple[Any, Any]:
    """Return the drop-in class of this name, and the library's own."""
    _, module, compat, _ = CLASSES[name]
    library = pytest.importorskip(module)
    replacement = pytest.importorskip(f"xuance_envs.compat.{compat}")
    return getattr(replacement, name), getattr(library, name)


def public(vec_env: Any) -> set[str]:
    return {name for name in dir(vec_env) if not name.startswith("_")}


def signatures(vec_env: Any, names: set[str]) -> dict[str, list[tuple[str, Any]]]:
    """Return the parameters and defaults of the methods."""
    methods = {name: getattr(vec_env, name) for name in names}
    return {
        name: [(p.name, p.default) for p in inspect.signature(method).parameters.values()]
        for name, method in methods.items()
        if inspect.ismethod(method)
    }


@classes
def test_missing_attributes_are_documented_and_signatures_match(name: str) -> None:
    library, *_, options = CLASSES[name]
    vec_env, own = (
        kind([partial(gymnasium.make, "CartPole-v1")], **options) for kind in both(name)
    )
    try:
        section = PAGE.read_text(encoding="utf-8").split(f"\n## {library}\n")[1].split("\n## ")[0]
        named = set(re.findall(r"`(\w+)`", section))
        assert public(own) - public(vec_env) - named == set()
        common = public(own) & public(vec_env)
        assert signatures(vec_env, common) == signatures(own, common)
    finally:
        vec_env.close()
        own.close()


@classes
def test_constructor_takes_the_library_arguments_in_order(name: str) -> None:
    parameters, expected = (
        [(p.name, p.default) for p in inspect.signature(kind).parameters.values()]
        for kind in both(name)
    )
    assert parameters[: len(expected)] == expected
