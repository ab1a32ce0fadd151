"""The benchmark of other libraries' interfaces, as short as it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_runs import run_script

SHORT = ("--num-envs", "2", "--rounds", "1", "--seconds", "0.02")


@pytest.mark.long
def test_every_contender_of_every_topic_is_in_the_table_and_the_json(tmp_path: Path) -> None:
    for needed in ("stable_baselines3", "envpool"):
        pytest.importorskip(needed)
    answer = run_script("compat", tmp_path, *SHORT)
    assert answer.record["notes"] == []
    rows = answer.record["results"]
    topics = ["gymnasium"] * 6 + ["sb3"] * 4 + ["native"] * 3
    assert [row["topic"] for row in rows] == topics
    for row in rows:
        assert (row["environments"], len(row["rounds"])) == (2, 1)
        assert row["contender"] in answer.printed
    firsts = [rows[topics.index(topic)] for topic in ("gymnasium", "sb3", "native")]
    assert all(row["ratio"] == 1 for row in firsts)
