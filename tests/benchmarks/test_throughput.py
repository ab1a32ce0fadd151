"""The throughput benchmark, as short as it can be: what it writes, never how fast anything is."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("matplotlib")
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_contender_is_in_the_table_the_json_and_the_picture(tmp_path: Path) -> None:
    answer = run(
        "throughput",
        *("--num-envs", "1", "3", "--backends", "dummy", "dummy-bare", "subproc", "caller"),
        *("--rounds", "1", "--seconds", "0.02"),
        *("--json", str(tmp_path / "a" / "out.json"), "--png", str(tmp_path / "out.png")),
    )
    assert answer.returncode == 0, answer.stderr
    record = json.loads((tmp_path / "a" / "out.json").read_text())
    contenders = {(row["contender"], row["environments"]) for row in record["results"]}
    ours = ("Dummy", "Dummy of gymnasium.make", "Subproc", "Subproc, caller_steps")
    expected = {(name, size) for name in (*ours, "limit of the cores") for size in (1, 3)}
    assert contenders == expected | {("bare loop over one", 1)}
    for row in record["results"]:
        assert len(row["rounds"]) == 1
        assert row["steps_per_second"] > 0
        assert row["relative_to"]["limit of the cores"] > 0
        assert row["contender"] in answer.stdout
    assert record["versions"]["gymnasium"]
    assert record["machine"]["cores"] >= 1
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_another_library_takes_part_or_is_reported_as_left_out(tmp_path: Path) -> None:
    answer = run(
        "throughput",
        *("--env", "MountainCar-v0", "--num-envs", "2", "--backends", "dummy"),
        *("--peers", "gymnasium-sync", "gymnasium-async", "envpool"),
        *("--rounds", "1", "--seconds", "0.01", "--json", str(tmp_path / "out.json")),
    )
    assert answer.returncode == 0, answer.stderr
    record = json.loads((tmp_path / "out.json").read_text())
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
def test_envpools_nearest_id_keeps_the_name(
    wanted: str, known: list[str], nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    peers = importlib.import_module("benchmarks.peers")
    assert peers.nearest_id(wanted, known) == nearest
    with pytest.raises(peers.LeftOut, match="NoSuchGame"):
        peers.nearest_id("NoSuchGame-v1", known)
