"""The benchmarks of Ray, as short as they can be: what they write, never how fast anything is."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_script


@pytest.mark.long  # starts some twenty actors
def test_the_model_is_made_checked_and_read_out(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    sizes = ("--num-envs", "2", "--work", "0.1", "--cartpoles", "2", "--model-envs", "1")
    sizes += ("--collected", "2", "--rollout-steps", "4")
    short = ("--actors", "1", "2", "--rounds", "1", "--seconds", "0.02")
    answer = run_script("ray_scaling", tmp_path, *sizes, *short, seconds=1200)
    found = answer.record["results"]
    assert [row["what"] for row in found["comparisons"]] == [
        "2 × 0.1 ms",
        *["2 × CartPole-v1"] * 4,
    ]
    on_nodes = [next(iter(row["rates"])) for row in found["comparisons"][-2:]]
    assert all("one actor on each of 2 single-core nodes" in name for name in on_nodes)
    assert all(row["ratio"] > 0 for row in found["comparisons"])
    delivered = [row["what"] for row in found["rollouts"]]
    assert len(delivered) in (2, 4)  # with RLlib, where that is installed
    assert {what.partition(",")[0] for what in delivered} == {
        "4 × CartPole-v1",
        "4 × 84 × 84 × 4 bytes",
    }
    assert all(row["ratio"] > 0 for row in found["rollouts"])
    assert "RLlib" in answer.page
    assert all(f"- {note}" in answer.page for note in answer.record["notes"])
    assert [row[1] for row in found["traffic"]] == ["2", "1"] * 2  # a call per actor
    assert found["costs"]["send"] > 0
    assert [row[0] for row in found["checks"]] == ["1", "2"]
    assert "1,024 cores on 32 machines" in answer.page
