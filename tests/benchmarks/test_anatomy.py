"""The parts of a vector step, measured in a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("backend", "groups"), [("dummy", 1), ("caller", None)])
def test_the_parts_are_within_the_whole(tmp_path: Path, backend: str, groups: int | None) -> None:
    file = tmp_path / "anatomy.json"
    arguments = ["--num-envs", "4", "--steps", "30", "--backend", backend, "--json", str(file)]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.anatomy", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    parts = json.loads(file.read_text())["results"]
    names = [name for name in parts if name.startswith("group")]
    assert len(names) == groups if groups else names
    for name in names:
        within = zip(parts[name], parts["all of it"], strict=True)
        assert all(0 < part < whole for part, whole in within)
    assert "| all of it" in result.stdout
