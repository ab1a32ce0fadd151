"""The page for those who come from another library: every name that is missing here is on it."""

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
    """The class by this name here, and the other library's."""
    _, module, ours, _ = CLASSES[name]
    theirs = pytest.importorskip(module)
    here = pytest.importorskip(f"xuance_envs.compat.{ours}")
    return getattr(here, name), getattr(theirs, name)


def public(vec_env: Any) -> set[str]:
    return {name for name in dir(vec_env) if not name.startswith("_")}


def signatures(vec_env: Any, names: set[str]) -> dict[str, list[tuple[str, Any]]]:
    """Parameters and defaults of the methods."""
    methods = {name: getattr(vec_env, name) for name in names}
    return {
        name: [(p.name, p.default) for p in inspect.signature(method).parameters.values()]
        for name, method in methods.items()
        if inspect.ismethod(method)
    }


@classes
def test_what_theirs_has_and_ours_has_not_is_named(name: str) -> None:
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
def test_ours_takes_their_arguments_in_their_places(name: str) -> None:
    taken, expected = (
        [(p.name, p.default) for p in inspect.signature(kind).parameters.values()]
        for kind in both(name)
    )
    assert taken[: len(expected)] == expected
