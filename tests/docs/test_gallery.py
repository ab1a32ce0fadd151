"""The films of the gallery: all there, all small, and one of them recorded again."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    pytest.importorskip("PIL")
    return runpy.run_path(str(ROOT / "docs/record_gallery.py"))


def test_all_films_are_there_and_small(script: dict[str, Any]) -> None:
    sizes = {film.path: film.path.stat().st_size for film in script["FILMS"]}
    assert set(sizes) == set(script["FOLDER"].iterdir())
    assert max(sizes.values()) <= script["LARGEST"]
    assert sum(sizes.values()) < 1_000_000


def test_the_page_shows_all_films(script: dict[str, Any]) -> None:
    page = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    for film in script["FILMS"]:
        assert f"](_static/gallery/{film.path.name})" in page
        assert film.env_id.removeprefix("ALE/").removesuffix("-v5") in page


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_a_film_can_be_recorded(name: str, script: dict[str, Any], tmp_path: Path) -> None:
    from PIL import Image

    film = next(film for film in script["FILMS"] if film.path.stem == name)
    script["record"](replace(film, steps=20), tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as recorded, Image.open(film.path) as kept:
        assert recorded.size == kept.size
        assert 1 < recorded.n_frames <= 20 / film.every
