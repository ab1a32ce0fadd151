"""The films of the gallery: all there, all small, and one of them recorded again."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from warm_python import run_python

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs/record_gallery.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    pytest.importorskip("PIL")
    pytest.importorskip("torch")
    return runpy.run_path(str(SCRIPT))


def test_all_films_are_there_and_small(script: dict[str, Any]) -> None:
    sizes = {film.path: film.path.stat().st_size for film in script["FILMS"]}
    assert set(sizes) == set(script["FOLDER"].iterdir())
    assert max(sizes.values()) <= script["LARGEST"]
    assert sum(sizes.values()) < 1_000_000


def test_the_page_shows_all_films(script: dict[str, Any]) -> None:
    page = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    for film in script["FILMS"]:
        assert f"](_static/gallery/{film.path.name})" in page
        assert film.env_id.rpartition("/")[2].rpartition(":")[2].removesuffix("-v5") in page


RECORD = """
import runpy, sys
from dataclasses import replace
from pathlib import Path

script = runpy.run_path(sys.argv[1])
film = next(film for film in script["FILMS"] if film.path.stem == sys.argv[2])
script["record"](replace(film, steps=20), Path("film.gif"))
"""


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_a_film_can_be_recorded(name: str, script: dict[str, Any], tmp_path: Path) -> None:
    from PIL import Image

    # In another process: what renders may leave threads behind, beside which none is forked.
    answer = run_python("-c", RECORD, SCRIPT, name, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    film = next(film for film in script["FILMS"] if film.path.stem == name)
    with Image.open(tmp_path / "film.gif") as recorded, Image.open(film.path) as kept:
        assert recorded.size == kept.size
        assert 1 < recorded.n_frames <= 20 / film.every
