"""The page on support says what ``setup.py`` does, and a release is the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import xuance_envs

ROOT = Path(__file__).parents[2]


def test_the_supported_versions_are_those_of_setup() -> None:
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    row = r"^\| ([\w-]+) \| ([\d.]+)(?:, below ([\d.]+))? \|"
    table = re.findall(row, page, re.MULTILINE)
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    bounds = re.findall(r"""["']([\w-]+)(?:\[\w+\])?[>=]=([\d.]+)(?:,<([\d.]+))?""", setup)
    assert len(table) == 12
    assert set(table) <= set(bounds)


def test_the_release_is_the_same_everywhere() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    release = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", headings[1])
    assert release is not None
    version, date = release.groups()
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
    assert xuance_envs.__version__ == version
    kinds = set(re.findall(r"^### (.*)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
