"""What somebody wants to know who has just come: a link to it on the two pages they see first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "install": "install",
    "port": "coming_from",
    "episode ends": "step_contract",
    "worker dies": "when_things_go_wrong",
    "how fast": "benchmarks",
}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_a_row_with_a_link(question: str, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = re.findall(rf"^\| [^|]*{question}[^|]* \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 1
    assert re.search(rf"\]\([^)]*{QUESTIONS[question]}", rows[0])


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    included = {"index.md", "changelog.md", "contributing.md"}
    assert {page for page in pages - included if f"(docs/{page}" not in readme} == set()
