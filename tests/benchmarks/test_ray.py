"""The benchmarks of Ray, as short as they can be: what they write, never how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("ray")
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json", str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_the_model_is_made_checked_and_read_out(tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    sizes = ("--num-envs", "2", "--work", "0.1", "--cartpoles", "2", "--model-envs", "1")
    short = ("--actors", "1", "2", "--rounds", "1", "--seconds", "0.02")
    printed = run("ray_scaling", file, *sizes, *short).stdout
    found = json.loads(file.read_text())["results"]
    assert [row["what"] for row in found["comparisons"]] == ["2 × 0.1 ms", "2 × CartPole-v1"]
    assert all(row["ratio"] > 0 for row in found["comparisons"])
    assert [row[1] for row in found["traffic"]] == ["2", "2"]  # a call per actor
    assert found["costs"]["send"] > 0
    assert [row[0] for row in found["checks"]] == ["1", "2"]
    assert "1,000 cores on 32 machines" in printed
