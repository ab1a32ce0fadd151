"""What "make docs" makes anew and what it keeps, in a folder with pages of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

LISTING = """{about}

Names
=====

.. autosummary::
   :toctree: api

   {module}
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


def test_pages_of_modules_follow_in_a_tree_that_was_built_before(tmp_path: Path) -> None:
    for library in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(library)
    for name in ("conf.py", "make_inventories.py", "_inventories", "_static", "_templates"):
        copy = shutil.copytree if (DOCS / name).is_dir() else shutil.copy
        copy(DOCS / name, tmp_path / name)
    (tmp_path / "index.md").write_text("# Index\n\n```{toctree}\napi\n```\n")
    (tmp_path / "api.rst").write_text(LISTING.format(about="", module="mended_later"))
    assert "failed to import mended_later" in build(tmp_path)
    for module in ("mended_later", "of_a_new_page"):
        (tmp_path / f"{module}.py").write_text('"""A module."""\n')
    new = LISTING.format(about=":orphan:", module="of_a_new_page")
    (tmp_path / "modules.rst").write_text(new)
    assert build(tmp_path) == ""
