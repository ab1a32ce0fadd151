"""Shortest possible runs of the benchmarks, for tests of their output but not of speed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starts import FORKING
from warm_python import run_python

ROOT = Path(__file__).resolve().parents[2]
CODE = f"""
import importlib
{FORKING}
from benchmarks.shared import quiet
quiet.LOOK_SECONDS = 0.01
importlib.import_module("benchmarks." + sys.argv[1]).main(sys.argv[2:])
"""


@dataclass(frozen=True)
class Answer:
    """Output of a script: printed text, JSON record, and the text in the page."""

    printed: str
    record: Any
    page: str


def run_script(
    module: str, folder: Path, *args: str, table: str | None = None, seconds: float = 110
) -> Answer:
    """Run a script in its own process."""
    table = table or f"{module} table"
    page, file = folder / "page.md", folder / "out.json"
    page.write_text(f"before\n<!-- {table}: begin -->\nold\n<!-- {table}: end -->\nafter\n")
    outputs = ("--json", str(file), "--page", str(page), "--table", table)
    done = run_python("-c", CODE, module, *args, *outputs, cwd=ROOT, timeout=seconds)
    assert done.returncode == 0, done.stderr
    before, *between, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    text = "\n".join(between[1:-1])
    assert text != "old"
    assert text in done.stdout
    return Answer(done.stdout, json.loads(file.read_text()), text)
