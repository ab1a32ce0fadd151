"""The benchmark of the remote environments, for a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_measures_all_three_and_counts_requests(tmp_path: Path) -> None:
    file = tmp_path / "remote.json"
    arguments = ["--num-envs", "2", "--rounds", "1", "--seconds", "0.05", "--json", str(file)]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.remote", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    results = json.loads(file.read_text())["results"]
    names = ["DummyVecEnv_Gym", "RemoteVecEnv", "SubprocVecEnv_Gym, one worker"]
    assert all(results[name]["rates"][0] > 0 for name in names)
    assert results["requests per vector step"] == {"count": 1.0}
    assert "requests per vector step: 1\n" in result.stdout
