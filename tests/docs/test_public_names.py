"""What the reference says of each public name: an example that runs, and every argument."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

import pytest
from backends import need_remote

need_remote()
for library in ("PIL", "stable_baselines3", "torch", "tqdm"):
    pytest.importorskip(library)

import xuance_envs
from xuance_envs import compat, rollout
from xuance_envs.compat import gymnasium, sb3

ROOT = Path(__file__).resolve().parents[2]

STUB = Path(xuance_envs.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
STUB_NAMES = re.findall(r"\bas (\w+),?$", STUB, re.MULTILINE)
PUBLIC = [
    *((xuance_envs, name) for name in STUB_NAMES if name != "__version__"),
    *((module, name) for module in (compat, gymnasium, rollout, sb3) for name in module.__all__),
]
NAMES = pytest.mark.parametrize(
    "public",
    [getattr(module, name) for module, name in PUBLIC],
    ids=[f"{module.__name__}.{name}" for module, name in PUBLIC],
)


def described(function: Any) -> str:
    """A docstring; of an exception, also those of the classes it derives from."""
    if inspect.isclass(function) and issubclass(function, BaseException):
        return "\n".join(base.__doc__ or "" for base in function.__mro__)
    return inspect.getdoc(function) or ""


def arguments(function: Any) -> set[str]:
    if is_typeddict(function) or function.__init__ is Exception.__init__:
        return set()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind not in kinds} - {"self", "cls"}


def own_methods(public: type) -> Iterator[tuple[str, Any]]:
    """The public methods that are this package's, and not promised by a library it takes after."""
    others = [base for base in public.__mro__ if not base.__module__.startswith("xuance_envs")]
    for name, method in inspect.getmembers(public, inspect.isroutine):
        if not name.startswith("_") and not any(name in vars(base) for base in others):
            yield name, method


@NAMES
def test_it_has_an_example_that_the_documentation_runs(public: Any) -> None:
    assert re.search(r"^\s*Examples?:\n\s+>>> ", public.__doc__, re.MULTILINE), public.__doc__


@NAMES
def test_its_arguments_are_described(public: Any) -> None:
    text = described(public)
    # `NamedTuple`s and dataclasses have attributes of the same names.
    assert [
        name for name in arguments(public) if not re.search(rf"\b{name}( \(.*\))?: ", text)
    ] == []


@NAMES
def test_its_methods_are_described(public: Any) -> None:
    if not inspect.isclass(public):
        return
    for name, method in own_methods(public):
        text = described(method)
        assert text, f"{name} has no docstring"
        unsaid = [each for each in arguments(method) if not re.search(rf"\b{each}\b", text)]
        # Or it says where: "See :meth:`Gym_Env.step`".
        assert not unsaid or ":meth:" in text, f"{name}: {unsaid}"


def test_the_reference_lists_every_public_name() -> None:
    definitions = runpy.run_path(str(ROOT / "docs" / "public_names.py"))["definitions"]()
    public = {getattr(module, name) for module, name in PUBLIC if module is xuance_envs}
    defined = {f"{each.__module__}.{each.__qualname__}" for each in public}
    assert defined <= set(definitions.values())
    others = [each for each in public if each.__module__ != "xuance_envs.errors"]
    shorter = {f"xuance_envs.{each.__name__}" for each in others}
    assert shorter <= definitions.keys(), "by the name that users import"
