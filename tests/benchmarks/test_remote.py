"""The benchmark of the remote environments, for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_script


@pytest.mark.slow("each attack runs once against a server")
def test_it_measures_all_three_counts_requests_and_makes_each_attack(tmp_path: Path) -> None:
    short = ("--num-envs", "2", "--rounds", "1", "--seconds", "0.05", "--sessions", "2")
    short += ("--attacks", "1")
    answer = run_script("remote", tmp_path, *short)
    results = answer.record["results"]
    names = ["DummyVecEnv_Gym", "RemoteVecEnv", "SubprocVecEnv_Gym, one worker"]
    assert all(results[name]["rates"][0] > 0 for name in names)
    assert results["requests per vector step"] == {"count": 1.0}
    assert "requests per vector step: 1\n" in answer.printed
    many = results["2 sessions"]
    assert many["requests"] > 0
    assert 0 < many["least"] <= 1
    assert 0 < many["p50"] <= many["p99"]
    attacks = results["attacks"]
    assert all(each["health"] > 0 and each["step"] > 0 for each in attacks.values())
    names = {"nothing", "64,000 texts of 30 KB", "16 states of 60 MiB, beyond the limit"}
    assert names < attacks.keys()
    assert max(each["growth"] for name, each in attacks.items() if "states" in name) < 100
