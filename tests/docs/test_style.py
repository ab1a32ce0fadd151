"""The package's words: docstrings in one form, and phrases that readers stumbled over kept out."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from backends import need_remote

need_remote()
pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

ROOT = Path(__file__).resolve().parents[2]
LISTED = runpy.run_path(str(ROOT / "docs" / "public_names.py"))["public_modules"]()
BANNED = {
    # what is banned: what to say
    r"what (came|comes|has come|would come) of|came of it": "the result",
    r"\bwho(m)?ever\b|\bwhosoever\b": "name the actor: users, the process that ...",
    r"\btak(es?|ing) note\b": "records, stores",
    r"\b(is|are|was|were|be|been) told\b": "receives; is passed",
    r"\btell(s|ing)? of\b": "reports",
    r"\bof which there\b": "a relative clause, or two sentences",
    r"\blet(s|ting)? go of\b": "releases, discards",
    r"\bmany agents\b": "multi-agent",
    r"\bmasks of actions\b": "action masks",
    r"\blost workers?\b": "failed worker",
    r"\bfirst ready, first served\b": "asynchronous stepping",
    r"\banew\b": "again; new",
    r"\bthose who\b|\bsomebody\b|\bnobody\b": "name the actor",
    r"\bat a training\b|\ba training\b(?! (run|loop|step|script|program|curve|set|process))": (
        "a training run"
    ),
    r"\bwhat there is\b": "name it: installed packages, free memory",
}
FREE_RELATIVE = re.compile(r"(What|Who|Whether|Where|Which|How)\b")
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)
REFERENCE = re.compile(r"(See|As) :(class|meth|func):`[^`]*`\.?")
MOST_PRIVATE_LINES = 3_500


class Documented(NamedTuple):
    """A definition with a docstring."""

    module: str
    name: str
    node: Any
    text: str

    @property
    def place(self) -> str:
        return f"{self.module}.{self.name}".removesuffix(".")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = sorted((ROOT / "xuance_envs").rglob("*.py"))
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.rst")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
]


@cache
def documented() -> list[Documented]:
    """Every docstring of the package."""
    found = []

    def walk(module: str, node: Any, prefix: str) -> Iterator[Documented]:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if text := ast.get_docstring(each):
                    yield Documented(module, prefix + each.name, each, text)
                yield from walk(module, each, f"{prefix}{each.name}.")
            elif isinstance(each, ast.If | ast.Try):
                yield from walk(module, each, prefix)

    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if text := ast.get_docstring(tree):
            found.append(Documented(module_name(path), "", tree, text))
        found += walk(module_name(path), tree, "")
    return found


def is_public(module: str) -> bool:
    return module in LISTED or module.startswith("xuance_envs.errors.")


def inherited_by_public() -> set[tuple[str, str]]:
    """Private classes that public ones derive from, whose methods users call."""
    # Tianshou is not installed here.
    found = {("xuance_envs.compat.tianshou_vector_env", "TianshouVectorEnv")}
    for name in LISTED - {"xuance_envs.compat.tianshou"}:
        for value in vars(importlib.import_module(name)).values():
            if inspect.isclass(value):
                found |= {(base.__module__, base.__qualname__) for base in value.__mro__}
    return found


def spoken(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page; of a module, its comments and strings."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in kinds:
                yield from enumerate(token.string.splitlines(), token.start[0])


@cache
def all_spoken() -> list[tuple[Path, int, str]]:
    return [(path, *each) for path in [*SOURCES, *PAGES] for each in spoken(path)]


@pytest.mark.parametrize("phrase", BANNED)
def test_a_phrase_is_nowhere(phrase: str) -> None:
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()}"
        for path, line, text in all_spoken()
        if pattern.search(text)
    ]
    assert not found, f"say: {BANNED[phrase]}\n" + "\n".join(found)


def test_functions_do_not_begin_with_a_free_relative() -> None:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    assert [
        each.place
        for each in documented()
        if isinstance(each.node, functions) and FREE_RELATIVE.match(each.text)
    ] == []


def test_no_docstring_only_refers_to_another() -> None:
    assert [each.place for each in documented() if REFERENCE.fullmatch(each.text)] == []


def test_private_code_has_no_sections() -> None:
    inherited = inherited_by_public()

    def is_seen(each: Documented) -> bool:
        parts = each.name.split(".")
        return any((each.module, ".".join(parts[:k])) in inherited for k in range(1, 3))

    assert [
        each.place
        for each in documented()
        if not is_public(each.module) and SECTION.search(each.text) and not is_seen(each)
    ] == []


def test_private_code_is_described_in_few_lines() -> None:
    lines = [
        each.node.body[0].end_lineno - each.node.body[0].lineno + 1
        for each in documented()
        if not is_public(each.module)
    ]
    assert sum(lines) <= MOST_PRIVATE_LINES


def test_the_linter_and_the_reference_agree_on_what_is_public() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r'^"!xuance_envs/\{(.*)\}" = \[$', settings, re.MULTILINE)
    files = {f"xuance_envs/{name}" for name in listed.split(",")}
    names = {each.removesuffix("/*.py").removesuffix(".py").replace("/", ".") for each in files}
    assert names == LISTED
