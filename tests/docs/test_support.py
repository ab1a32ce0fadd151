"""The page on support says what ``setup.py`` does."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_oldest_supported_versions_are_the_floors() -> None:
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, re.MULTILINE))
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    floors = {
        (name, floor)
        for name, floor in re.findall(r"""["']([\w-]+)(?:\[\w+\])?[>=]=([\d.]+)""", setup)
    }
    assert len(table) == 11
    assert set(table.items()) <= floors
