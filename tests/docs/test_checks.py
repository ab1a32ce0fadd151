"""The checks of the built pages find what they are for; "make docs" runs them on the real ones."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINKS = runpy.run_path(str(DOCS / "check_links.py"))
PAGES = runpy.run_path(str(DOCS / "check_pages.py"))

PAGE = """<!doctype html><html><head><meta name="viewport" content="width=device-width">
<style>:root { color-scheme: light dark } body { background: white; color: black }
@media (prefers-color-scheme: dark) { body { background: black; color: white } }
</style></head><body><article><p id="here">Text</p>%s</article></body></html>"""


def site(folder: Path, body: str) -> Path:
    (folder / "index.html").write_text(PAGE % body, encoding="utf-8")
    (folder / "other.html").write_text(PAGE % '<a href="index.html#here">back</a>', "utf-8")
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<a href="other.html">there</a>',
        '<a href="other.html#here">there</a>',
        '<a href="#here">here</a>',
        '<a href="https://example.org/none#none">elsewhere</a>',
        '<a href="mailto:a@example.org">a letter</a>',
    ],
)
def test_links_that_lead_somewhere_are_fine(body: str, tmp_path: Path) -> None:
    assert LINKS["faults"](site(tmp_path, body)) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">gone</a>', "index.html: gone.html: no such file"),
        ('<a href="#gone">gone</a>', "index.html: #gone: no such anchor"),
        ('<img src="gone.png">', "index.html: gone.png: no such file"),
        ('<a href="other.html#x">x</a>', "index.html: other.html#x: no such anchor"),
    ],
)
def test_links_that_lead_nowhere_are_found(body: str, fault: str, tmp_path: Path) -> None:
    assert LINKS["faults"](site(tmp_path, body)) == [fault]


def test_a_site_without_pages_is_a_fault(tmp_path: Path) -> None:
    assert LINKS["faults"](tmp_path)


# --- pages in a browser -------------------------------------------------------------------------

DRAWING = '<svg role="img"><text y="20" fill="%s">t0</text></svg>'
FINE = f"<p>{'word ' * 200}</p>{DRAWING % 'currentColor'}"
BAD = {
    "wider than the window": '<div style="width: 3000px">wide</div>',
    "missing image: gone.png": '<img src="gone.png">',
    "low contrast: drawing t0": DRAWING % "white",
    "ReferenceError": "<script>nothing()</script>",
    "wrong colour scheme": "<style>body { background: white !important }</style>",
}


@pytest.mark.skipif(PAGES["BROWSER"] is None, reason="no chromium here: apt-get install chromium")
def test_what_is_wrong_with_a_page_is_found(tmp_path: Path) -> None:
    site(tmp_path, FINE)
    for number, body in enumerate(BAD.values()):
        (tmp_path / f"{number}.html").write_text(PAGE % body, encoding="utf-8")
    with PAGES["browser"]() as tab:

        def faults(name: str) -> str:
            return "\n".join(PAGES["faults_of"](tab, tmp_path / name, None))

        assert faults("index.html") == ""
        for number, expected in enumerate(BAD):
            assert expected in faults(f"{number}.html")


def test_without_a_browser_it_says_that_nothing_was_looked_at(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(DOCS / "check_pages.py"), str(site(tmp_path, FINE))],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "pages not checked" in result.stdout


# --- inventories --------------------------------------------------------------------------------


def content(inventory: bytes) -> tuple[bytes, str]:
    """Its head, and its lines, however they are compressed."""
    *head, body = inventory.split(b"\n", 4)
    return b"\n".join(head), zlib.decompress(body).decode()


def test_the_inventories_are_those_of_the_script() -> None:
    script: dict[str, Any] = runpy.run_path(str(DOCS / "make_inventories.py"))
    kept = {path.stem: content(path.read_bytes()) for path in script["FOLDER"].glob("*.inv")}
    assert kept == {name: content(script["inventory_of"](name)) for name in script["SITES"]}
    for _, lines in kept.values():
        assert all(
            re.fullmatch(r"[\w.]+ py:\w+ 1 [\w./-]+#[\w.-]+ -", line) for line in lines.splitlines()
        )
