"""What "make docs" makes anew and what it keeps, in a folder with pages of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

LISTING = """
Names
=====

.. autosummary::
   :toctree: api

   mended_later
"""


def build(folder: Path) -> str:
    """What is warned of; pages of modules are made anew, as by "make docs", other pages kept."""
    shutil.rmtree(folder / "api", ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "dummy", str(folder), str(folder / "to")]
    path = os.pathsep.join([str(folder), str(DOCS.parent)])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return done.stderr


@pytest.mark.long  # builds a documentation twice
def test_pages_of_modules_follow_in_a_tree_that_was_built_before(tmp_path: Path) -> None:
    for library in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(library)
    scripts = ("conf.py", "public_names.py", "make_inventories.py")
    for name in (*scripts, "_inventories", "_static", "_templates"):
        copy = shutil.copytree if (DOCS / name).is_dir() else shutil.copy
        copy(DOCS / name, tmp_path / name)
    (tmp_path / "index.md").write_text("# Index\n\n```{toctree}\napi\n```\n")
    (tmp_path / "api.rst").write_text(LISTING)
    assert "failed to import mended_later" in build(tmp_path)
    for module in ("mended_later", "of_a_new_page"):
        (tmp_path / f"{module}.py").write_text('"""A module."""\n')
    (tmp_path / "api.rst").write_text(f"{LISTING}   of_a_new_page\n")
    assert build(tmp_path) == ""
    assert (tmp_path / "api" / "of_a_new_page.rst").exists()
