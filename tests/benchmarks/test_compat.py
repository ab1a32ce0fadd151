"""The benchmark of other libraries' interfaces, as short as it can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("topic", "contenders"), [("gymnasium", 6), ("sb3", 4), ("native", 3)])
def test_every_contender_is_in_the_table_and_the_json(
    tmp_path: Path, topic: str, contenders: int
) -> None:
    file = tmp_path / "compat.json"
    arguments = [
        topic,
        "--num-envs",
        "2",
        "--rounds",
        "1",
        "--seconds",
        "0.02",
        "--json",
        str(file),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.compat", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(file.read_text())
    assert found["notes"] == []
    assert len(found["results"]) == contenders
    for row in found["results"]:
        assert (row["topic"], row["environments"], len(row["rounds"])) == (topic, 2, 1)
        assert row["contender"] in result.stdout
    assert found["results"][0]["ratio"] == 1
