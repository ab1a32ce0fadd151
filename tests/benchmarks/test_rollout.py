"""The benchmarks of rollouts and of learning, in short: what they write, never how fast it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_script

pytest.importorskip("torch")
pytest.importorskip("matplotlib")


@pytest.mark.slow("starts every contender")
def test_every_contender_is_timed_and_its_time_is_divided(tmp_path: Path) -> None:
    answer = run_script(
        *("rollout", tmp_path),
        *("--num-envs", "2", "3", "--backends", "dummy", "caller", "--steps-per-env", "4"),
        *("--rounds", "1", "--seconds", "0.02"),
    )
    results = answer.record["results"]
    names = ("simple, per environment", "Dummy", "Subproc, caller_steps")
    found = [(result["environments"], result["contender"]) for result in results]
    assert found == [(size, name) for size in (2, 3) for name in names]
    for result in results:
        assert result["steps_per_second"] > 0
        assert result["relative_to_simple"] > 0
        assert result["contender"] in answer.page
        if result["contender"] != names[0]:
            shares = result["shares"]
            assert sum(shares.values()) == pytest.approx(1)
            assert all(0 < share < 1 for share in shares.values())


@pytest.mark.long
def test_every_learner_is_timed_until_the_goal(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    answer = run_script("learning", tmp_path, "--seeds", "1", "--goal", "20")
    results = answer.record["results"]
    assert len(results) == 3
    for result in results:
        assert result["learner"] in answer.page
        assert result["mean_return"] >= 20
        assert result["seconds"] > 0


@pytest.mark.long  # starts eight processes, of which four load torch
def test_halves_are_timed_beside_a_bare_loop(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sizes = ("--num-envs", "4", "--workers", "2", "--work", "0.1", "--think", "0.1")
    answer = run_script("halves", tmp_path, *sizes, "--rounds", "1", "--seconds", "0.02")
    assert [row[0] for row in answer.record["results"]["rows"]] == [
        "RolloutCollector",
        "a bare loop",
    ]
