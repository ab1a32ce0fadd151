"""Short runs of the benchmarks of stepping modes; they check the output, not the speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_runs import run_script


@pytest.mark.long
def test_slow_and_waiting_environments_and_unequal_cores(tmp_path: Path) -> None:
    answer = run_script(
        *("asynchronous_stepping", tmp_path, "--peers", "gymnasium-async"),
        *("--slow-envs", "2", "--waiting-envs", "2", "--unequal-envs", "2"),
        *("--rounds", "1", "--seconds", "0.02"),
    )
    rows = {
        part: {row["contender"]: row for row in found["results"]}
        for part, found in answer.record["results"].items()
    }
    assert list(rows) == ["slow", "waiting", "unequal"]
    assert "Gymnasium Async" in rows["slow"].keys() & rows["waiting"].keys()
    for part, found in rows.items():
        for contender, row in found.items():
            assert len(row["rounds"]) == 1
            assert row["steps_per_second"] > 0
            assert f"| {contender} " in answer.page
            assert all(ratio > 0 for ratio in row["ratios"].values()), (part, row)
    assert rows["slow"]["send, recv(1), without the slow one"]["ratios"] == {
        "× without the slow one": 1.0
    }
    # What sleeps cannot be faster than its sleep.
    assert all(0 < row["ratios"]["× ideal"] <= 1 for row in rows["waiting"].values())
    busy = [name for name in rows["unequal"] if name.endswith(", half busy")]
    assert len(busy) == len(rows["unequal"]) / 2
    assert rows["unequal"][busy[0]]["ratios"]["× step, half busy"] == 1.0


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--own-cpu",)])
def test_the_cost_to_the_caller_by_environments_and_workers(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    picture = tmp_path / "a" / "cost.png"
    pytest.importorskip("matplotlib")
    answer = run_script(
        *("parent_cost", tmp_path, "--png", str(picture)),
        *(
            "--num-envs",
            "2",
            "6",
            "--workers",
            "1",
            "2",
            "3",
            "--rounds",
            "1",
            "--steps",
            "10",
            *options,
        ),
    )
    costs = {
        (row["call"], row["environments"], row["workers"]): row["microseconds"]
        for row in answer.record["results"]
    }
    sizes = [(2, 1), (2, 2), (6, 1), (6, 2), (6, 3)]
    assert set(costs) == {(call, *size) for call in ("step", "send-recv") for size in sizes}
    assert all(cost > 0 for cost in costs.values())
    assert f"{costs['step', 6, 3]:.3f} |" in answer.page
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_choices_are_judged_by_the_best_of_the_fixed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import choice
    from benchmarks.shared import quiet

    monkeypatch.setattr(quiet, "LOOK_SECONDS", 0.01)
    small = replace(choice.CASES["sleeping-16"], num_envs=3)
    monkeypatch.setattr(choice, "CASES", {"sleeping-3": small})
    file = tmp_path / "out.json"
    short = ("--times", "1", "--rounds", "1", "--seconds", "0.02")
    choice.main(["--cases", "sleeping-3", *short, "--json", str(file)])
    found = json.loads(file.read_text())
    assert found["notes"] == []
    (row,) = found["results"]
    assert {each.name for each in small.fixed} <= set(row["measured"])
    (made,) = row["choices"]
    assert made["seconds"] > 0
    mine, best = (row["measured"][name][0] for name in (made["choice"], row["best"]))
    assert made["of_the_best"] == pytest.approx(mine / best)
    assert f"| 3 × {small.title} " in capsys.readouterr().out


def test_what_cannot_be_made_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import choice
    from benchmarks.shared import quiet

    monkeypatch.setattr(quiet, "LOOK_SECONDS", 0.01)

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'game'")

    monkeypatch.setitem(choice.CASES, "cartpole-2", choice.Case("Game-v0", missing, 2))
    choice.main(["--cases", "cartpole-2", "--json", str(tmp_path / "out.json")])
    assert "No module named 'game'" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["results"] == []
    assert "cartpole-2: left out" in found["notes"][0]
