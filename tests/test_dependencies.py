"""Attributes of libraries that are not public, and the versions that have them."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from xuance_envs.extras import require_attributes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "xuance_envs"

DEFINITIONS = ast.FunctionDef, ast.AsyncFunctionDef

USERS = {
    path.stem: path
    for path in PACKAGE.rglob("*.py")
    if "\nrequire_attributes(\n" in path.read_text(encoding="utf-8")
}


def required(module: str) -> tuple[str, list[str]]:
    """Return the requirement and the attributes that a module checks when it is imported."""
    for statement in ast.parse(USERS[module].read_text(encoding="utf-8")).body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "require_attributes":
            requirement, _, names = call.args
            return ast.literal_eval(requirement), ast.literal_eval(names).split()
    raise AssertionError(module)


def attributes(tree: ast.AST, *owners: str) -> set[str]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if ast.unparse(node.value) in owners}


def used(module: str, base: str, *others: str) -> set[str]:
    """Return the attributes of a base class that a subclass uses, and other modules through it."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in (USERS[module], *(USERS[module].with_name(f"{name}.py") for name in others))
    ]
    classes = [node for node in trees[0].body if isinstance(node, ast.ClassDef)]
    derived = next(each for each in classes if base in map(ast.unparse, each.bases))
    methods = [each for each in derived.body if isinstance(each, DEFINITIONS)]
    (init,) = [method for method in methods if method.name == "__init__"]
    own = {method.name for method in methods} | {
        node.attr
        for node in ast.walk(init)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    found = attributes(derived, "self")
    for tree in trees[1:]:
        found |= attributes(tree, "connection", "self._connection")
    return (found - own | attributes(derived, "super()")) - {"__init__"}


def test_these_modules_use_internals() -> None:
    assert set(USERS) == {"by_value", "http_protocol", "listener"}


def test_every_attribute_of_uvicorn_is_checked() -> None:
    names = set(required("http_protocol")[1])
    # uvicorn calls these two; without them its own would answer.
    assert names == used("http_protocol", "HttpToolsProtocol", "requests") | {
        "on_response_complete",
        "send_400_response",
    }
    assert set(required("listener")[1]) == used("listener", "uvicorn.Server")


def test_every_attribute_of_cloudpickle_is_checked() -> None:
    text = USERS["by_value"].read_text(encoding="utf-8")
    found = set(re.findall(r"\bcloudpickle\.(?!__)(\w+)", text))
    found |= set(re.findall(r'"(_\w+)": self\.', text))
    assert set(required("by_value")[1]) == found


@pytest.mark.parametrize("module", USERS)
def test_setup_has_the_same_bounds(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr("setuptools.setup", given.update)
    monkeypatch.chdir(ROOT)
    setup = runpy.run_path(str(ROOT / "setup.py"))
    requirements = [*given["install_requires"], *setup["EXTRAS"]["remote"]]  # type: ignore[misc]
    assert required(module)[0] in requirements


@pytest.mark.parametrize(
    ("library", "user", "names"),
    [
        ("cloudpickle.cloudpickle", "xuance_envs.engine.by_value", required("by_value")[1]),
        (
            "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol",
            "xuance_envs.remote.server.http.http_protocol",
            ["on_headers_complete", "on_message_begin", "on_response_complete"],
        ),
    ],
    ids=["cloudpickle", "uvicorn"],
)
def test_an_attribute_that_is_missing_is_named_with_the_version(
    library: str, user: str, names: list[str]
) -> None:
    package = library.partition(".")[0]
    pytest.importorskip(package)
    code = (
        "import importlib, pkgutil, sys\n"
        f"owner = pkgutil.resolve_name({library!r})\n"
        f"for name in {names!r}:\n"
        "    value = getattr(owner, name)\n"
        "    delattr(owner, name)\n"
        "    try:\n"
        f"        importlib.import_module({user!r})\n"
        "    except ImportError as error:\n"
        "        print(name, error, sep=': ')\n"
        "    setattr(owner, name, value)\n"
        "    for each in [each for each in sys.modules if each.startswith('xuance_envs')]:\n"
        "        del sys.modules[each]"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    lines = result.stdout.splitlines()
    assert len(lines) == len(names), result.stderr
    for line, name in zip(lines, names, strict=True):
        assert re.match(
            rf"{name}: {package} [\d.]+ has no {name} in \S+, which xuance_envs requires: pip "
            rf'install "{package}',
            line,
        ), line


class Base:
    def __init__(self) -> None:
        self.instance_attribute = 1


def test_attributes_of_instances_count() -> None:
    require_attributes("numpy", Base, "instance_attribute __init__")
    with pytest.raises(ImportError, match=r"^numpy \S+ has no another in Base, which"):
        require_attributes("numpy<9", Base, "instance_attribute another")
