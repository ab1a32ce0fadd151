"""The throughput benchmark, as short as it can be: what it writes, never how fast anything is."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from benchmark_runs import run_script


@pytest.mark.slow("starts every contender")
def test_every_contender_is_in_the_table_the_json_and_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run_script(
        *("throughput", tmp_path),
        *("--num-envs", "1", "3", "--backends", "dummy", "dummy-bare", "subproc", "caller"),
        *("--rounds", "1", "--seconds", "0.02", "--png", str(tmp_path / "out.png")),
    )
    record = answer.record
    contenders = {(row["contender"], row["environments"]) for row in record["results"]}
    ours = ("Dummy", "Dummy of gymnasium.make", "Subproc", "Subproc, caller_steps")
    expected = {(name, size) for name in (*ours, "limit of the cores") for size in (1, 3)}
    assert contenders == expected | {("bare loop over one", 1)}
    for row in record["results"]:
        assert len(row["rounds"]) == 1
        assert row["steps_per_second"] > 0
        assert row["relative_to"]["limit of the cores"] > 0
        assert row["contender"] in answer.page
    assert record["versions"]["gymnasium"]
    assert record["machine"]["cores"] >= 1
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_another_library_takes_part_or_is_reported_as_left_out(tmp_path: Path) -> None:
    answer = run_script(
        *("throughput", tmp_path),
        *("--env", "MountainCar-v0", "--num-envs", "2", "--backends", "dummy"),
        *("--peers", "gymnasium-sync", "gymnasium-async", "envpool"),
        *("--rounds", "1", "--seconds", "0.01"),
    )
    record = answer.record
    took_part = {row["contender"] for row in record["results"]}
    assert {"Gymnasium Sync", "Gymnasium Async"} <= took_part
    assert ("EnvPool" in took_part) != any("EnvPool" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("wanted", "known", "nearest"),
    [
        ("CartPole-v1", ["CartPole-v0", "CartPole-v1"], "CartPole-v1"),
        ("HalfCheetah-v5", ["HalfCheetah-v3", "HalfCheetah-v4"], "HalfCheetah-v4"),
        ("ALE/Breakout-v5", ["Breakout-v5", "BreakoutDeluxe-v5"], "Breakout-v5"),
    ],
)
def test_envpools_nearest_id_keeps_the_name(wanted: str, known: list[str], nearest: str) -> None:
    peers = importlib.import_module("benchmarks.peers")
    assert peers.nearest_id(wanted, known) == nearest
    with pytest.raises(peers.LeftOut, match="NoSuchGame"):
        peers.nearest_id("NoSuchGame-v1", known)
