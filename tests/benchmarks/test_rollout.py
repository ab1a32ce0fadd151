"""The benchmarks of rollouts and of learning, in short: what they write, never how fast it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("torch")
pytest.importorskip("matplotlib")


def run(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_contender_is_timed_and_its_time_is_divided(tmp_path: Path) -> None:
    answer = run(
        "rollout",
        *("--num-envs", "2", "3", "--backends", "dummy", "caller", "--steps-per-env", "4"),
        *("--rounds", "1", "--seconds", "0.02", "--json", str(tmp_path / "out.json")),
    )
    assert answer.returncode == 0, answer.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    names = ("simple, per environment", "Dummy", "Subproc, caller_steps")
    found = [(result["environments"], result["contender"]) for result in results]
    assert found == [(size, name) for size in (2, 3) for name in names]
    for result in results:
        assert result["steps_per_second"] > 0
        assert result["relative_to_simple"] > 0
        assert result["contender"] in answer.stdout
        if result["contender"] != names[0]:
            shares = result["shares"]
            assert sum(shares.values()) == pytest.approx(1)
            assert all(0 < share < 1 for share in shares.values())


def test_every_learner_is_timed_until_the_goal(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    answer = run("learning", "--seeds", "1", "--goal", "20", "--json", str(tmp_path / "out.json"))
    assert answer.returncode == 0, answer.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert len(results) == 3
    for result in results:
        assert result["learner"] in answer.stdout
        assert result["mean_return"] >= 20
        assert result["seconds"] > 0
