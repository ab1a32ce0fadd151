"""What somebody sees who has just come: the README, and the first page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "Install": "installation",
    "Port a Gymnasium": "migrating",
    "autoreset": "step_contract",
    "worker crashes": "failures",
    "speed": "benchmarks",
}


SECTIONS = ("about", "installing", "quick start", "wants", "speed", "features", "not for")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_a_row_with_a_link(question: str) -> None:
    wants = README.partition("<!-- wants: begin -->")[2].partition("<!-- wants: end -->")[0]
    rows = re.findall(rf"^\| [^|]*{question}[^|]* \| (.*) \|$", wants, re.MULTILINE)
    assert len(rows) == 1
    assert re.search(rf"\]\([^)]*{QUESTIONS[question]}", rows[0])


def test_the_landing_page_is_the_readme_in_its_order() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    included = re.findall(r'^:start-after: "<!-- (.*): begin -->"$', page, re.MULTILINE)
    assert tuple(included) == SECTIONS
    places = [README.index(f"<!-- {name}: begin -->") for name in SECTIONS]
    assert places == sorted(places)


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 160


def test_the_table_of_features_has_a_cell_for_everybody_with_a_version() -> None:
    table = README.partition("<!-- features: begin -->")[2].partition("<!-- features: end -->")[0]
    header, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    libraries = [cell.strip() for cell in header.split("|")[2:-1]]
    assert [re.search(r" \d+\.\d+\.\d+$", name) is not None for name in libraries] == [True] * 10
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert len(cells) == 11
        assert all(cells), row


def test_every_page_is_linked_from_the_readme() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    included = {"index.md", "changelog.md", "contributing.md"}
    assert {page for page in pages - included if f"(docs/{page}" not in README} == set()


def how_to_pages() -> list[str]:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    return index.partition(":caption: How to\n:hidden:\n\n")[2].partition("```")[0].split()


@pytest.mark.parametrize("name", how_to_pages())
def test_a_how_to_page_starts_with_code(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    code = re.search(r"^```(?:\{\w.*|python|console)$", text, re.MULTILINE)
    assert code is not None
    before = text[: code.start()]
    assert len(before.splitlines()) <= 20
    assert not re.search(r"^\|", before, re.MULTILINE), "no table before it"


def test_old_page_names_redirect_to_pages() -> None:
    settings = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    table = settings.partition("for old, new in {")[2].partition("}.items()")[0]
    redirects = dict(re.findall(r'"(\w+)": "(\w+)"', table))
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert len(redirects) == 10
    assert set(redirects.values()) <= pages
    assert not redirects.keys() & pages


SEARCHED = {
    "num_workers": "workers",
    "frame stack": "transforms",
    "multi-agent": "multi_agent",
    "action mask": "action_masks",
    "sub-environment": "step_contract",
    "wrapper": "transforms",
    "async": "asynchronous_stepping",
    "checkpoint": "saving",
    "double buffering": "asynchronous_stepping",
    "deadlock": "failures",
    "final_obs": "autoreset",
}


@pytest.mark.parametrize("words", SEARCHED)
def test_a_search_finds_the_page(words: str) -> None:
    """The search ranks a main index entry, which a "!" marks, above titles and texts."""
    page = (ROOT / "docs" / f"{SEARCHED[words]}.md").read_text(encoding="utf-8")
    entries = re.findall(r"^(?:```|:::)\{index\} (.*)$", page, re.MULTILINE)
    assert f"!{words}" in ", ".join(entries).split(", ")
